"""The radial kernel between particles and its bandwidth."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from relbo._parameters import Positive


def optional_bandwidth(bandwidth: Any) -> Positive | None:
    return None if bandwidth is None else Positive.of(bandwidth, name="bandwidth")


def rbf(
    position: Float[Array, "k d"], bandwidth: Positive | None
) -> tuple[Float[Array, "k k"], Float[Array, "k k d"]]:
    """k(z_i, z_j) = exp(-|z_i - z_j|^2 / h), and its gradient in z_i at entry (i, j)."""
    difference = position[:, None, :] - position[None, :, :]
    squared = jnp.sum(jnp.square(difference), axis=-1)
    width = median_bandwidth(squared) if bandwidth is None else bandwidth.value
    gram = jnp.exp(-squared / width)
    return gram, -2 / width * difference * gram[..., None]


def median_bandwidth(squared: Float[Array, "k k"]) -> Scalar:
    """The median squared distance between two particles, over log(K + 1).

    It follows the particles, so a determinant must be differentiated through it.
    """
    num_particles = squared.shape[0]
    if num_particles == 1:
        return jnp.ones((), squared.dtype)
    pairs = squared[jnp.triu_indices(num_particles, 1)]
    # All particles in one point leave no scale to take; any positive one will do.
    tiny = jnp.finfo(squared.dtype).tiny ** 0.5
    return jnp.maximum(jnp.median(pairs), tiny) / jnp.log(num_particles + 1.0)
