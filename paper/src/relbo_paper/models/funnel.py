"""The funnel: a density whose width varies over orders of magnitude."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

FUNNEL_SCALE = 1.35
"""The standard deviation of z1, the logarithm of the funnel's width."""

_LOG_2PI = 1.8378770664093453


def funnel_logdensity(position: Float[Array, "2"]) -> Scalar:
    r"""Returns the log density of the two-dimensional funnel (paper, section 5.1).

    $$z_1 \sim N(0, 1.35), \qquad z_2 \sim N(0, e^{z_1})$$

    with standard deviations as second arguments. It is normalised: log Z = 0 exactly.

    Args:
        position: (z1, z2).

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(funnel_logdensity(jnp.zeros(2))), 4)
        -2.138
    """
    log_width, across = position[0], position[1]
    # Scaling before squaring avoids overflow in the neck, where the width is tiny.
    squares = jnp.square(log_width / FUNNEL_SCALE) + jnp.square(across * jnp.exp(-log_width))
    return -0.5 * squares - jnp.log(FUNNEL_SCALE) - log_width - _LOG_2PI
