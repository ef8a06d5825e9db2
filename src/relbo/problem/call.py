"""The arguments of a program: arrays, which are traced, and everything else."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from relbo.problem.arrays import Frame, columns_of, with_arrays


class Call(NamedTuple):
    """The arguments of one run of a program."""

    args: tuple
    kwargs: dict[str, Any]


Keywords = Mapping[str, Any] | Frame | None
"""Keyword arguments of a model, also as the columns of a frame."""


def checked_call(args: tuple | list, kwargs: Keywords) -> Call:
    """Checks the `args` and `kwargs` of a public function and returns them as a `Call`.

    Lists of numbers, columns and frames become arrays.
    """
    if not isinstance(args, tuple | list) or hasattr(args, "_fields"):
        raise ValueError(
            "args: expected a tuple of the model's positional arguments, got "
            f"{type(args).__name__}; write args=(y,)"
        )
    if isinstance(kwargs, Frame):
        kwargs = columns_of("kwargs", kwargs)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(
            "kwargs: expected a dict of the model's keyword arguments, got "
            f'{type(kwargs).__name__}; write kwargs={{"y": y}}'
        )
    return Call(with_arrays("args", tuple(args)), with_arrays("kwargs", dict(kwargs or {})))


def refuse_arguments(args: tuple | list, kwargs: Keywords, reason: str) -> None:
    """Refuses arguments for a model that takes none."""
    call = checked_call(args, kwargs)
    if call.args or call.kwargs:
        raise ValueError(f"args: {reason}")


class ByIdentity:
    """Makes a value hashable: it is equal to itself only. It keeps the value alive."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value


class CallLayout(NamedTuple):
    """A call without its arrays. Hashable, so that equal layouts share compiled programs."""

    structure: Any
    constants: tuple
    """The leaves that are not arrays, with `None` in the place of each array."""
    is_array: tuple[bool, ...]

    def fill(self, arrays: tuple) -> Call:
        """Returns the call with these arrays."""
        remaining = iter(arrays)
        pairs = zip(self.constants, self.is_array, strict=True)
        leaves = [next(remaining) if is_array else _unwrap(value) for value, is_array in pairs]
        return jax.tree.unflatten(self.structure, leaves)

    def with_constants(self, arrays: tuple) -> "CallLayout":
        """Returns a layout in which the arrays are constants too."""
        # As NumPy arrays, since JAX computes nothing on constants while it traces.
        arrays = tuple(np.asarray(leaf) for leaf in arrays)
        constants = tuple(map(_wrap, jax.tree.leaves(self.fill(arrays))))
        return CallLayout(self.structure, constants, (False,) * len(constants))


def split_call(call: Call) -> tuple[CallLayout, tuple]:
    """Splits a call into its layout and its arrays."""
    leaves, structure = jax.tree.flatten(call)
    leaves = [_plain_scalar(leaf) for leaf in leaves]
    constants = tuple(None if _is_data(leaf) else _wrap(leaf) for leaf in leaves)
    layout = CallLayout(structure, constants, tuple(map(_is_data, leaves)))
    return layout, tuple(filter(_is_data, leaves))


def _plain_scalar(leaf: Any) -> Any:
    """Turns NumPy integers, which are sizes more often than data, into Python ones."""
    if isinstance(leaf, np.integer | np.bool_):
        return leaf.item()
    return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf


def _is_data(leaf: Any) -> bool:
    """Whether a leaf is a numeric array."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biufcV"
    return isinstance(leaf, jax.Array)


def _wrap(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return ByIdentity(value)
    return value


def _unwrap(value: Any) -> Any:
    return value.value if isinstance(value, ByIdentity) else value
