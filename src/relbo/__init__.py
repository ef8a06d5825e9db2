"""relbo: variational inference with samplers inside.

Names are imported on first use, so that `relbo --help` does not wait for JAX.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

# The public names are listed once, in the stub that type checkers read.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'relbo' has no attribute {name!r}")
    home = _HOMES[name]
    is_room = home == "relbo"
    module = import_module(f"relbo.{name}" if is_room else home)
    value = module if is_room else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
