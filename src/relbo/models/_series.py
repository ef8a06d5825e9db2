"""Observed series: which entries are there, and what is wrong with them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from relbo._parameters import is_traced


def observed_entries(series: Array, mask: Array | None) -> Bool[Array, "..."]:
    """Where a series was observed: not NaN, and not masked.

    Args:
        series: numbers; NaN says that an entry is missing.
        mask: `True` where an entry was observed, in the shape of the series or of its time
            axis; `None` for everywhere.
    """
    series = jnp.asarray(series)
    is_float = jnp.issubdtype(series.dtype, jnp.floating)
    observed = ~jnp.isnan(series) if is_float else jnp.ones(series.shape, bool)
    if mask is None:
        return observed
    mask = jnp.asarray(mask)
    if mask.dtype != bool:
        raise ValueError(f"mask: expected True where observed, got the type {mask.dtype}")
    if mask.shape not in (series.shape, series.shape[:1]):
        raise ValueError(
            f"mask: expected the shape {series.shape} of the series or {series.shape[:1]} of "
            f"its time axis, got {mask.shape}"
        )
    mask = mask.reshape(mask.shape + (1,) * (series.ndim - mask.ndim))
    return observed & mask


def check_length(series: Array) -> None:
    """A series has at least one step."""
    if series.ndim == 0 or series.shape[0] == 0:
        raise ValueError(
            "series: expected at least one step along the leading axis, got the shape "
            f"{series.shape}"
        )


def is_known(*arrays: Array) -> bool:
    """Whether all values can be looked at: inside a compiled function they cannot."""
    return not any(is_traced(array) for array in arrays)


def check_values(
    name: str, values: Array, is_right: Callable[[np.ndarray], Any], expected: str
) -> None:
    """Raises where values can be looked at and are wrong."""
    if not is_known(values):
        return
    # NumPy, because under a transformation jax.numpy would trace even this.
    known = np.asarray(values)
    if not np.all(is_right(known)):
        raise ValueError(f"{name}: expected {expected}, got {known}")
