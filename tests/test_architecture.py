"""The imports between rooms point one way, and the page about them is up to date."""

import ast
import subprocess
import sys
from pathlib import Path

import architecture
import pytest

import relbo

ROOT = Path(__file__).resolve().parent.parent

ORDER = [
    ["cli"],
    ["commands"],
    ["_infer", "statespace"],
    ["sampling"],
    ["training", "evaluate"],
    ["guides"],
    ["gaussian"],
    ["problem"],
    ["core"],
]
"""Each room may import rooms below it."""

PUBLIC = {"relbo", "relbo.cli", "relbo.core.kernels"} | {
    f"relbo.{room}" for room, home in relbo._HOMES.items() if home == "relbo" and room != "core"
}
"""Modules whose names users import."""


def test_imports_point_down():
    level = {room: n for n, rooms in enumerate(ORDER) for room in rooms}
    for room, targets in architecture.shown(architecture.arrows()).items():
        for target in targets:
            assert level[room] < level[target], f"{room} imports {target}"


def test_the_page_is_up_to_date():
    command = [sys.executable, ROOT / "scripts" / "architecture.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_cycle_is_an_error():
    with pytest.raises(ValueError, match="cycle"):
        architecture.layers({"a": {"b"}, "b": {"a"}})


def test_the_library_does_not_import_the_paper():
    for path in (ROOT / "src").rglob("*.py"):
        modules = architecture.imported_modules(path)
        assert not [name for name in modules if name.startswith("relbo_paper")], path


def test_utilities_import_no_room():
    graph = architecture.arrows()
    for room in architecture.UTILITIES:
        assert graph[room] <= architecture.UTILITIES


def names_of_other_rooms(text, room):
    """Returns what a test of a room imports that is neither public nor of the room."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return [
        f"{module}.{name}".rstrip(".")
        for module, name in found
        if module.split(".")[0] == "relbo"
        and (module not in PUBLIC or name.startswith("_"))
        and f"{module}.{name}".split(".")[1] not in (room, f"_{room}")
    ]


def test_tests_use_public_names_or_those_of_their_own_room():
    tests = ROOT / "tests"
    found = {}
    for path in tests.rglob("test_*.py"):
        own = path.parent.name if path.parent != tests else path.stem.removeprefix("test_")
        found[path.name] = names_of_other_rooms(path.read_text(), own)
    assert {name: names for name, names in found.items() if names} == {}


def test_names_of_other_rooms_are_found():
    text = "from relbo.core.bases import Dirac\nfrom relbo import SGD, _infer"
    assert names_of_other_rooms(text, "guides") == ["relbo.core.bases.Dirac", "relbo._infer"]
    assert names_of_other_rooms(text, "core") == ["relbo._infer"]
