"""Reads observed series, and checks the parts of a model."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from relbo.core.parameters import is_traced
from relbo.problem.arrays import DataLike, as_array


def read_observations(
    series: DataLike, mask: ArrayLike | None
) -> tuple[Array, Bool[Array, "..."]]:
    """Returns a series with zeros at its missing entries, and where it was observed.

    Args:
        series: the series; NaN marks a missing entry.
        mask: `True` where an entry was observed, in the shape of the series or of its time
            axis; `None` for everywhere.
    """
    series = jnp.asarray(as_array("series", series))
    check_length(series)
    observed = ~jnp.isnan(series)
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.dtype != bool:
            raise ValueError(f"mask: expected True where observed, got the type {mask.dtype}")
        if mask.shape not in (series.shape, series.shape[:1]):
            raise ValueError(
                f"mask: expected the shape {series.shape} of the series or "
                f"{series.shape[:1]} of its time axis, got {mask.shape}"
            )
        observed &= mask.reshape(mask.shape + (1,) * (series.ndim - mask.ndim))
    return jnp.where(observed, series, 0), observed


def check_length(series: Array) -> None:
    """Raises an error if a series has no steps."""
    if series.ndim == 0 or series.shape[0] == 0:
        raise ValueError(
            "series: expected at least one step along the leading axis, got the shape "
            f"{series.shape}"
        )


def float_arrays(**given: ArrayLike) -> dict[str, Array]:
    """Returns arrays of the common floating-point type of some numbers, by name."""
    dtype = jnp.result_type(float, *given.values())
    return {name: jnp.asarray(value, dtype) for name, value in given.items()}


def check_values(
    name: str, values: Array, is_valid: Callable[[np.ndarray], Any], expected: str
) -> None:
    """Raises an error if values are concrete and invalid."""
    if is_traced(values):
        return
    # NumPy, because under a transformation jax.numpy would trace this check as well.
    known = np.asarray(values)
    if not np.all(is_valid(known)):
        raise ValueError(f"{name}: expected {expected}, got {known}")
