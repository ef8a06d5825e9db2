"""Averages of weights in the log domain."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def log_mean_exp(log_weights: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Computes a stable log-mean-exp along the last axis.

    The compiler may compute a weight twice with different rounding, for instance where it fuses
    a product with the subtraction of the maximum. A weight of -1e10 then differs from itself by
    hundreds, and its exponential is infinite or zero. The largest weight is therefore
    identified by its index, not by its value.

    Args:
        log_weights: the logarithms of the weights.

    Returns:
        The logarithms of their means.
    """
    place = jnp.argmax(log_weights, axis=-1, keepdims=True)
    is_largest = jax.lax.broadcasted_iota(int, log_weights.shape, log_weights.ndim - 1) == place
    largest = jnp.sum(jnp.where(is_largest, log_weights, 0.0), axis=-1)
    below = log_weights - jnp.where(jnp.isfinite(largest), largest, 0.0)[..., None]
    below = jnp.where(is_largest | (below > 0.0), 0.0, below)
    return largest + jnp.log(jnp.mean(jnp.exp(below), axis=-1))
