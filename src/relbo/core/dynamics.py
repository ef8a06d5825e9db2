r"""Hamiltonian dynamics: the one leapfrog, as functions on arrays.

They use arithmetic alone, so that NumPy and JAX both run them: the `Underdamped` kernel, the
annealed evidence and the chains of `infer` share these formulas. With the momentum $\rho$, the
score $g$ and the step size $\epsilon$ a leapfrog is

$$\rho \leftarrow \rho + \tfrac{\epsilon}{2} g(z), \quad z \leftarrow z + \epsilon \rho, \quad
  \rho \leftarrow \rho + \tfrac{\epsilon}{2} g(z)$$

split where the score at the new position becomes known: `start_leapfrog`, then `end_leapfrog`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

EVEN_KICK = 0.84714
"""The kick at even positions of a two-stage trajectory; that at odd ones is 2 minus it.

With 1 the steps are leapfrogs. With this value two steps together have the smallest energy
error for a normal density, so that a step may be twice as long.

References:
    Blanes, Casas and Sanz-Serna, Numerical integrators for the hybrid Monte Carlo method, 2014.
"""


def start_leapfrog(
    position: Any, momentum: Any, score: Any, step_size: Any, kick: Any = 1.0
) -> tuple[Any, Any]:
    """Kicks the momentum by half a step and moves the position by a whole one.

    The strength `kick` is one for a leapfrog; see `EVEN_KICK`.
    """
    momentum = end_leapfrog(momentum, score, step_size, kick)
    return position + step_size * momentum, momentum


def end_leapfrog(momentum: Any, score: Any, step_size: Any, kick: Any = 1.0) -> Any:
    """Kicks the momentum by the second half of a step, with the score at the new position."""
    return momentum + 0.5 * step_size * kick * score


def leapfrog(
    position: Any, momentum: Any, score: Any, step_size: Any, score_fn: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """Takes one leapfrog.

    Args:
        position: where it starts.
        momentum: the momentum there.
        score: the gradient of the log density there.
        step_size: a number, or one per coordinate.
        score_fn: the gradient of the log density at a position; it is called once.

    Returns:
        The new position, the momentum and the score there.

    Example:
        >>> leapfrog(1.0, 0.0, -1.0, 0.1, lambda z: -z)
        (0.995, -0.09975, -0.995)
    """
    position, momentum = start_leapfrog(position, momentum, score, step_size)
    score = score_fn(position)
    return position, end_leapfrog(momentum, score, step_size), score


def refresh(momentum: Any, noise: Any, damping: Any) -> Any:
    """Replaces a part of the momentum by noise, leaving N(0, I) invariant."""
    return damping * momentum + ((1 - damping) * (1 + damping)) ** 0.5 * noise


def kinetic_energy(momentum: Any) -> Any:
    """Computes the energy of a standard normal momentum over the last axis."""
    return 0.5 * (momentum**2).sum(-1)


def log_weight_increment(before: Any, after: Any) -> Any:
    r"""Computes what a leapfrog adds to the log weight of a path.

    The refreshments leave N(0, I) invariant, so that the ratio of the densities of the reversed
    and the forward path is $\log N(\rho') - \log N(\rho)$ for each trajectory, with the momenta
    $\rho$ after the refreshment (`before`) and $\rho'$ at its end (`after`).
    """
    return kinetic_energy(before) - kinetic_energy(after)


def acceptance_probability(
    energy_before: Float[Array, "..."], energy_after: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Computes the Metropolis acceptance probability; an energy that is NaN is rejected."""
    gain = energy_before - energy_after
    return jnp.where(jnp.isnan(gain), 0.0, jnp.exp(jnp.minimum(gain, 0.0)))
