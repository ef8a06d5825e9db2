"""Random keys, as public functions accept them."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

KeyLike = PRNGKeyArray | int
"""A typed JAX key, a raw uint32 key (`jax.random.PRNGKey`) or an integer seed."""


def as_key(key: Any) -> PRNGKeyArray:
    """Returns a typed JAX key of a `KeyLike`.

    Example:
        >>> import jax.random as jr
        >>> bool(as_key(3) == jr.key(3))
        True
    """
    is_array = isinstance(key, jax.Array | np.ndarray)
    try:
        if is_typed_key(key) and key.shape == ():
            return key
        if is_array and key.dtype == np.uint32 and key.ndim == 1:
            return jr.wrap_key_data(jnp.asarray(key))
        if not is_array and not isinstance(key, bool) and operator.index(key) >= 0:
            return jr.key(operator.index(key))
    except (TypeError, OverflowError):
        pass  # no integer, or the wrong number of words
    got = f"an array of shape {key.shape} and type {key.dtype}" if is_array else repr(key)
    raise ValueError(
        f"key: expected one random key or a non-negative integer, got {got}: use "
        "jax.random.key(0), or 0"
    )


def is_typed_key(leaf: Any) -> bool:
    """Whether a value is a typed key, or an array of typed keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
