"""Loads a model from a Python file named on the command line."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from relbo.commands import InputError


def load_model(target: str) -> Callable[..., Any]:
    """Returns the function MODEL of the file in `FILE.py:MODEL`."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"{target}: expected FILE.py:MODEL, such as schools.py:model")
    path = Path(file)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if path.suffix != ".py":
        raise InputError(f"{path}: expected a Python file, with a name that ends in .py")
    module = _imported(path)
    model = getattr(module, name, None)
    if not hasattr(module, name):
        functions = [n for n, f in vars(module).items() if _is_defined_in(module, f)]
        has = f"it has {', '.join(functions)}" if functions else "it defines no function"
        raise InputError(f"{path}: it does not define '{name}'; {has}")
    if not callable(model):
        raise InputError(
            f"{path}: expected '{name}' to be a function, got {type(model).__name__}"
        )
    return model


def first_line(error: BaseException) -> str:
    """Returns the first line of an error, after its type if that says more."""
    lines = str(error).strip().splitlines() or [""]
    plain = isinstance(error, ValueError | TypeError) and lines[0]
    return lines[0] if plain else f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def location(error: BaseException, path: Path) -> str:
    """Returns the file and the innermost of its lines in the traceback of an error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path.resolve()
    ]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _imported(path: Path) -> ModuleType:
    full = path.resolve()
    # A unique name, so that it shadows no other module.
    name = f"_relbo_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The model may import files beside it, as when Python runs it.
    sys.path.insert(0, str(full.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise InputError(f"{path}{line}: not Python ({error.msg})") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{location(error, path)}: {first_line(error)}") from error
    finally:
        sys.path.remove(str(full.parent))
    return module


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__
