"""Checks of observed series and of the values of a model's parts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from relbo.core.parameters import is_traced


def observed_entries(series: ArrayLike, mask: ArrayLike | None) -> Bool[Array, "..."]:
    """Returns where a series was observed: not NaN, and not masked.

    Args:
        series: the series; NaN marks a missing entry.
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
    """Raises an error if a series has no steps."""
    if series.ndim == 0 or series.shape[0] == 0:
        raise ValueError(
            "series: expected at least one step along the leading axis, got the shape "
            f"{series.shape}"
        )


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
