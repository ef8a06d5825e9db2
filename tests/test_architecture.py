"""The imports between rooms point one way, and the page about them is up to date."""

import subprocess
import sys
from pathlib import Path

import architecture
import pytest

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
