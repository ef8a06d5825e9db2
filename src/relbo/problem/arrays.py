"""Converts data to arrays: lists, and columns and frames of other libraries.

Libraries such as pandas, polars and xarray are recognised by their methods, without an import.
"""

import numbers
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import ArrayLike

_NUMERIC = "biufc"
"""Kinds of NumPy types that are numbers."""


@runtime_checkable
class Column(Protocol):
    """Data that can be converted, such as pandas' `Series` and xarray's `DataArray`."""

    def to_numpy(self) -> Any: ...


@runtime_checkable
class Frame(Protocol):
    """A table with named columns, such as pandas' and polars' `DataFrame`."""

    columns: Any

    def to_numpy(self) -> Any: ...

    def __getitem__(self, name: Any) -> Any: ...


DataLike = ArrayLike | list | Column
"""What `as_array` converts."""


def as_array(name: str, value: Any) -> Any:
    """Converts a list of numbers, a column or a frame to a NumPy array.

    A frame becomes a matrix. Arrays and values that are not data are returned as they are.

    Raises:
        ValueError: if a column or a list has values that are missing or not numbers. The
            message begins with `name`, the name of the argument.

    Example:
        >>> as_array("y", [1, 2, 3])
        array([1, 2, 3])
    """
    if isinstance(value, list):
        return _from_list(name, value)
    if isinstance(value, Frame):
        columns = columns_of(name, value).values()
        return np.stack(tuple(columns), axis=1) if columns else value.to_numpy()
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return value
    if isinstance(value, Column):
        return _numeric(_named(name, value), _to_numpy(value))
    return _numeric(name, np.asarray(value)) if hasattr(value, "__array__") else value


def columns_of(name: str, frame: Frame) -> dict[str, Any]:
    """Returns the columns of a frame as arrays, by name."""
    return {
        str(label): _numeric(f"{name}: the column '{label}'", _to_numpy(frame[label]))
        for label in frame.columns
    }


def with_arrays(name: str, tree: Any) -> Any:
    """Converts all data in a pytree to arrays; see `as_array`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: as_array(f"{name}{jax.tree_util.keystr(path)}", leaf),
        tree,
        is_leaf=lambda node: isinstance(node, list) and _is_numeric_list(node),
    )


def _from_list(name: str, value: list) -> Any:
    if not _is_numeric_list(value):
        return value
    if None in _items(value):
        raise ValueError(f"{name}: the list has None in it: leave missing values out")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: the lists in it have different lengths") from error
    return _numeric(name, array)


def _is_numeric_list(value: list) -> bool:
    """Whether a list contains numbers, and perhaps missing ones, but nothing else."""
    items = list(_items(value))
    are_numbers = [isinstance(item, numbers.Number | np.bool_) for item in items]
    return any(are_numbers) and all(
        is_number or item is None for item, is_number in zip(items, are_numbers, strict=True)
    )


def _items(value: Any) -> Iterator[Any]:
    """Lists the items of nested lists."""
    if isinstance(value, list):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _named(name: str, column: Any) -> str:
    label = getattr(column, "name", None)
    return name if label in (None, "") else f"{name}: the column '{label}'"


def _to_numpy(column: Column) -> np.ndarray:
    try:
        return column.to_numpy()
    except ValueError:
        return np.asarray(column)  # Arrow's arrays refuse what would be a copy


def _numeric(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in _NUMERIC:
        return array
    for item in array.ravel().tolist():
        if not isinstance(item, numbers.Number):
            raise ValueError(
                f"{name} has {item!r} in it, which is not a number: leave it out or encode it, "
                "such as categories by their codes"
            )
    return array.astype(float)
