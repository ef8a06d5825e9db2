"""The mean of weights that are known by their logarithms."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def log_mean_exp(log_weights: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """The logarithm of the mean along the last axis; right for huge weights, too.

    The compiler may compute a weight twice and round it otherwise, for instance where it joins
    a product and the subtraction of the maximum. A weight of -1e10 then lies hundreds above or
    below itself, and its exponential is infinite or zero. So the largest is known by its place.
    """
    place = jnp.argmax(log_weights, axis=-1, keepdims=True)
    is_largest = jax.lax.broadcasted_iota(int, log_weights.shape, log_weights.ndim - 1) == place
    largest = jnp.sum(jnp.where(is_largest, log_weights, 0.0), axis=-1)
    below = log_weights - jnp.where(jnp.isfinite(largest), largest, 0.0)[..., None]
    below = jnp.where(is_largest | (below > 0.0), 0.0, below)
    return largest + jnp.log(jnp.mean(jnp.exp(below), axis=-1))
