"""Checks of arguments, with messages that name the argument."""

import operator
from numbers import Real
from typing import Any


def check_integer(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """Raises `ValueError` unless `value` is an integer of at least `least` (or `None`)."""
    if optional and value is None:
        return
    try:
        is_valid = not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"{name}: expected an integer of {least} or more, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {value!r}")


def check_instance(name: str, value: Any, kind: type, example: str) -> None:
    """Raises `ValueError` unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected an instance such as {example}, got {value!r}")


def check_positive(name: str, value: Any, *, optional: bool = False) -> None:
    """Raises `ValueError` unless `value` is a positive number (or `None`)."""
    if optional and value is None:
        return
    if not _is_number(value) or not value > 0:
        raise ValueError(f"{name}: expected a positive number, got {value!r}")


def check_fraction(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is between 0 and 1."""
    if not _is_number(value) or not 0.0 < value < 1.0:
        raise ValueError(f"{name}: expected a number between 0 and 1, got {value!r}")


def check_seconds(value: Any) -> None:
    """Raises `ValueError` unless `value` is a time budget: `None`, or at least 0 seconds."""
    if value is not None and not (_is_number(value) and value >= 0):
        raise ValueError(f"seconds: expected at least 0 or None, got {value!r}")


def check_bool(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected a bool, got {type(value).__name__} {value!r}")


def check_shape(name: str, value: Any, *sizes: int | str) -> None:
    """Raises `ValueError` unless an array has a shape; a word stands for any size but 0."""
    fits = len(sizes) == value.ndim and all(
        found > 0 if isinstance(size, str) else found == size
        for found, size in zip(value.shape, sizes, strict=True)
    )
    if not fits:
        expected = ", ".join(map(str, sizes))
        raise ValueError(f"{name}: expected the shape [{expected}], got {value.shape}")


def _is_number(value: Any) -> bool:
    is_array = getattr(value, "shape", None) == ()
    return (isinstance(value, Real) or is_array) and not isinstance(value, bool)
