"""Random keys: what a public function accepts as one."""

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
    """Returns a typed JAX key.

    Args:
        key: an integer seed, a typed key (`jax.random.key`) or a raw uint32 key
            (`jax.random.PRNGKey`).

    Example:
        >>> import jax.random as jr
        >>> bool(as_key(3) == jr.key(3))
        True
    """
    typed = _from_array(key) if isinstance(key, jax.Array | np.ndarray) else _from_seed(key)
    if typed is None:
        raise ValueError(
            "key: expected one random key or a non-negative integer, got "
            f"{_describe(key)}: use jax.random.key(0), or 0"
        )
    return typed


def _from_array(key: jax.Array | np.ndarray) -> PRNGKeyArray | None:
    if isinstance(key, jax.Array) and is_typed_key(key):
        return key if key.shape == () else None
    if key.dtype != np.uint32 or key.ndim != 1:
        return None
    try:
        return jr.wrap_key_data(jnp.asarray(key))
    except TypeError:  # the wrong number of words
        return None


def _from_seed(seed: Any) -> PRNGKeyArray | None:
    if isinstance(seed, bool):
        return None
    try:
        seed = operator.index(seed)
        return jr.key(seed) if seed >= 0 else None
    except (TypeError, OverflowError):
        return None


def _describe(key: Any) -> str:
    is_array = isinstance(key, jax.Array | np.ndarray)
    return f"an array of shape {key.shape} and type {key.dtype}" if is_array else repr(key)


def is_typed_key(leaf: Any) -> bool:
    """Whether a value is a typed key, or an array of typed keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
