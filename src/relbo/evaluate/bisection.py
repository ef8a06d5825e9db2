"""Bisection of many intervals at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Scalar


def bisect(
    is_below: Callable[[Float[Array, "..."]], Bool[Array, "..."]],
    lower: Float[Array, "..."],
    upper: Float[Array, "..."],
    num_halvings: int,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the ends of small intervals in which `is_below` turns from true to false."""

    def halve(_: Scalar, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        lower, upper = ends
        middle = 0.5 * (lower + upper)
        below = is_below(middle)
        return jnp.where(below, middle, lower), jnp.where(below, upper, middle)

    return jax.lax.fori_loop(0, num_halvings, halve, (lower, upper))
