"""Metropolis-corrected Hamiltonian moves between two log densities."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from relbo.core.bases import AbstractBase
from relbo.core.coordinates import coordinates
from relbo.core.dynamics import (
    acceptance_probability,
    end_leapfrog,
    kinetic_energy,
    start_leapfrog,
)

JITTER = 0.2
"""Relative jitter of a move's step size: trajectories of a fixed length can be periodic."""


class AnnealedPoint(NamedTuple):
    """A position with both log densities there, so that neither is computed twice."""

    position: Float[Array, " d"]
    base: Scalar
    base_grad: Float[Array, " d"]
    target: Scalar
    target_grad: Float[Array, " d"]

    @property
    def gain(self) -> Float[Array, "*chains"]:
        return self.target - self.base

    def tempered(self, inverse_temperature: Scalar) -> Scalar:
        return inverse_temperature * self.target + (1 - inverse_temperature) * self.base

    def tempered_grad(self, inverse_temperature: Scalar) -> Float[Array, " d"]:
        mixed = inverse_temperature * self.target_grad
        return mixed + (1 - inverse_temperature) * self.base_grad


class AnnealedPath(NamedTuple):
    """The two ends of a geometric path, as log densities over flat vectors."""

    draw: Callable[[PRNGKeyArray], Float[Array, " d"]]
    base_fn: Callable[[Float[Array, " d"]], Scalar]
    target_fn: Callable[[Float[Array, " d"]], Scalar]
    dimension: int
    dtype: Any

    def at(self, position: Float[Array, " d"]) -> AnnealedPoint:
        base, base_grad = jax.value_and_grad(self.base_fn)(position)
        target, target_grad = jax.value_and_grad(self.target_fn)(position)
        return AnnealedPoint(position, base, base_grad, target, target_grad)


def path_between(
    base: AbstractBase, logdensity_fn: Callable[[PyTree], Scalar], *, whiten: bool
) -> AnnealedPath:
    """Makes the path from a base to a log density.

    With `whiten` it is walked in the base's whitened coordinates, if the base has them.
    """
    if not base.has_density:
        raise ValueError(
            f"base: {type(base).__name__} has no density, and an annealed path cannot start "
            "from it: use a normal one"
        )
    there = coordinates(base, logdensity_fn, whiten=whiten)
    flat, unravel = ravel_pytree(there.base.centre)
    return AnnealedPath(
        lambda key: ravel_pytree(there.base.sample(key)[0])[0],
        lambda z: there.base.log_prob(unravel(z)),
        lambda z: there.logdensity_fn(unravel(z)),
        flat.size,
        flat.dtype,
    )


class MoveNoise(NamedTuple):
    """The random numbers of a move; for many chains, along a leading axis."""

    momentum: Float[Array, " d"]
    jitter: Scalar
    threshold: Scalar
    """A move is accepted if its probability is larger."""


def draw_noise(key: PRNGKeyArray, positions: Float[Array, "chains d"]) -> MoveNoise:
    """Draws the noise of all chains at once, since each random call takes time to compile."""
    momentum_key, uniform_key = jr.split(key)
    momentum = jr.normal(momentum_key, positions.shape, positions.dtype)
    uniform = jr.uniform(uniform_key, (2, positions.shape[0]), positions.dtype)
    return MoveNoise(momentum, 1 - JITTER + 2 * JITTER * uniform[0], uniform[1])


def move(
    path: AnnealedPath,
    point: AnnealedPoint,
    noise: MoveNoise,
    inverse_temperature: Scalar,
    step_sizes: Float[Array, " d"],
    num_leapfrogs: Int[Array, ""] | int,
) -> tuple[AnnealedPoint, Scalar]:
    """Makes one Hamiltonian move that leaves the tempered density invariant.

    Returns:
        The point after the move, and the acceptance probability.
    """
    steps = noise.jitter * step_sizes

    def one_leapfrog(
        _: Scalar, state: tuple[AnnealedPoint, Array]
    ) -> tuple[AnnealedPoint, Array]:
        point, momentum = state
        force = point.tempered_grad(inverse_temperature)
        position, momentum = start_leapfrog(point.position, momentum, force, steps)
        point = path.at(position)
        return point, end_leapfrog(momentum, point.tempered_grad(inverse_temperature), steps)

    def energy(point: AnnealedPoint, momentum: Array) -> Scalar:
        return kinetic_energy(momentum) - point.tempered(inverse_temperature)

    start = (point, noise.momentum)
    end, end_momentum = jax.lax.fori_loop(0, num_leapfrogs, one_leapfrog, start)
    probability = acceptance_probability(energy(*start), energy(end, end_momentum))
    accepted = noise.threshold < probability
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), end, point), probability
