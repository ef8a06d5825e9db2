"""The radial kernel between particles, and its bandwidth."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from relbo.core.parameters import Positive


def optional_bandwidth(bandwidth: Any) -> Positive | None:
    return None if bandwidth is None else Positive.of(bandwidth, name="bandwidth")


def rbf(
    position: Float[Array, "k d"], bandwidth: Positive | None
) -> tuple[Float[Array, "k k"], Float[Array, "k k d"]]:
    """Returns k(z_i, z_j) = exp(-|z_i - z_j|^2 / h) and its gradient in z_i."""
    difference = position[:, None, :] - position[None, :, :]
    squared = jnp.sum(jnp.square(difference), axis=-1)
    width = median_bandwidth(squared) if bandwidth is None else bandwidth.value
    gram = jnp.exp(-squared / width)
    return gram, -2 / width * difference * gram[..., None]


def median_bandwidth(squared: Float[Array, "k k"]) -> Scalar:
    """Returns the median squared distance between two particles over log(K + 1).

    It depends on the particles, so a determinant must be differentiated through it.
    """
    num_particles = squared.shape[0]
    if num_particles == 1:
        return jnp.ones((), squared.dtype)
    # A sort: `jnp.median` also handles NaN and takes twice as long to compile.
    pairs = jnp.sort(squared[np.triu_indices(num_particles, 1)])
    median = 0.5 * (pairs[(pairs.size - 1) // 2] + pairs[pairs.size // 2])
    # Particles that are all at one point have no scale; any positive value works.
    tiny = jnp.finfo(squared.dtype).tiny ** 0.5
    return jnp.maximum(median, tiny) / jnp.log(num_particles + 1.0)
