"""relbo_paper uses only the public modules of relbo."""

import ast
from pathlib import Path

import relbo_paper

PUBLIC = {
    "relbo",
    "relbo.cli",
    "relbo.core.kernels",
    "relbo.data",
    "relbo.distributed",
    "relbo.evaluate",
    "relbo.guides",
    "relbo.problem",
    "relbo.sampling",
    "relbo.statespace",
    "relbo.training",
}
PACKAGE = Path(relbo_paper.__file__).parent
SCRIPTS = PACKAGE.parents[1] / "scripts"


def names_of_relbo(tree):
    """Yields the module and the name of everything that a file imports or uses of relbo."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in PUBLIC:
            yield ast.unparse(node.value), node.attr


def private_names(text):
    return [
        f"{module}.{name}".rstrip(".")
        for module, name in names_of_relbo(ast.parse(text))
        if module.split(".")[0] == "relbo" and (module not in PUBLIC or name.startswith("_"))
    ]


def test_only_public_names_of_relbo_are_used():
    files = [*PACKAGE.rglob("*.py"), *SCRIPTS.glob("*.py")]
    found = {path.name: private_names(path.read_text()) for path in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_private_modules_and_names_are_found():
    text = "import relbo\nfrom relbo.core.bases import Dirac\nfrom relbo import _infer, SGD"
    assert private_names(text) == ["relbo.core.bases.Dirac", "relbo._infer"]
    assert private_names("import relbo\nrelbo.evaluate._hidden") == ["relbo.evaluate._hidden"]
