"""Metropolis-corrected Hamiltonian moves between two log densities."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from relbo.bases import AbstractBase, AbstractNormal, standard_normal_logdensity

JITTER = 0.2
"""How far a move's step strays from its size: a fixed one may walk in circles."""


class Point(NamedTuple):
    """A position with both log densities there, so that no move computes one twice."""

    position: Float[Array, " d"]
    base: Scalar
    base_grad: Float[Array, " d"]
    target: Scalar
    target_grad: Float[Array, " d"]

    @property
    def gain(self) -> Scalar:
        return self.target - self.base

    def tempered(self, inverse_temperature: Scalar) -> Scalar:
        return inverse_temperature * self.target + (1 - inverse_temperature) * self.base

    def tempered_grad(self, inverse_temperature: Scalar) -> Float[Array, " d"]:
        mixed = inverse_temperature * self.target_grad
        return mixed + (1 - inverse_temperature) * self.base_grad


class Path(NamedTuple):
    """The two ends of a geometric path, over flat vectors."""

    draw: Callable[[PRNGKeyArray], Float[Array, " d"]]
    base_fn: Callable[[Float[Array, " d"]], Scalar]
    target_fn: Callable[[Float[Array, " d"]], Scalar]
    dimension: int
    dtype: Any

    def at(self, position: Float[Array, " d"]) -> Point:
        base, base_grad = jax.value_and_grad(self.base_fn)(position)
        target, target_grad = jax.value_and_grad(self.target_fn)(position)
        return Point(position, base, base_grad, target, target_grad)


def path_between(
    base: AbstractBase, logdensity_fn: Callable[[PyTree], Scalar], *, whiten: bool
) -> Path:
    """The path from a base to a log density.

    Args:
        base: where it begins; it needs a density.
        logdensity_fn: where it ends.
        whiten: walk in the base's own coordinates, where it has such.
    """
    if not base.has_density:
        raise ValueError(
            f"base: {type(base).__name__} has no density, and an annealed path cannot start "
            "from it: use a normal one"
        )
    if whiten and isinstance(base, AbstractNormal):
        return _white_path(base, logdensity_fn)
    flat, unravel = ravel_pytree(base.centre)
    return Path(
        lambda key: ravel_pytree(base.sample(key)[0])[0],
        lambda z: base.log_prob(unravel(z)),
        lambda z: logdensity_fn(unravel(z)),
        flat.size,
        flat.dtype,
    )


def _white_path(base: AbstractNormal, logdensity_fn: Callable[[PyTree], Scalar]) -> Path:
    flat, unravel = ravel_pytree(base.noise)

    def target_fn(noise: Float[Array, " d"]) -> Scalar:
        position, log_det = base.transform(unravel(noise))
        return logdensity_fn(position) + log_det

    return Path(
        lambda key: jr.normal(key, flat.shape, flat.dtype),
        standard_normal_logdensity,
        target_fn,
        flat.size,
        flat.dtype,
    )


class Noise(NamedTuple):
    """What a move draws; for many chains, along a leading axis."""

    momentum: Float[Array, " d"]
    jitter: Scalar
    threshold: Scalar
    """Accept where the probability is larger."""


def draw_noise(key: PRNGKeyArray, positions: Float[Array, "chains d"]) -> Noise:
    """The noise of all chains at once, since each random call takes its time to compile."""
    momentum_key, uniform_key = jr.split(key)
    momentum = jr.normal(momentum_key, positions.shape, positions.dtype)
    uniform = jr.uniform(uniform_key, (2, positions.shape[0]), positions.dtype)
    return Noise(momentum, 1 - JITTER + 2 * JITTER * uniform[0], uniform[1])


def move(
    path: Path,
    point: Point,
    noise: Noise,
    inverse_temperature: Scalar,
    step_sizes: Float[Array, " d"],
    num_leapfrogs: int,
) -> tuple[Point, Scalar]:
    """One Hamiltonian move that leaves the tempered density as it is.

    Returns:
        Where it ends, and the probability with which it was accepted.
    """
    steps = noise.jitter * step_sizes

    def leapfrog(_: int, state: tuple[Point, Array]) -> tuple[Point, Array]:
        point, momentum = state
        momentum = momentum + 0.5 * steps * point.tempered_grad(inverse_temperature)
        point = path.at(point.position + steps * momentum)
        return point, momentum + 0.5 * steps * point.tempered_grad(inverse_temperature)

    def energy(point: Point, momentum: Array) -> Scalar:
        return 0.5 * jnp.sum(jnp.square(momentum)) - point.tempered(inverse_temperature)

    end, end_momentum = jax.lax.fori_loop(0, num_leapfrogs, leapfrog, (point, noise.momentum))
    log_ratio = energy(point, noise.momentum) - energy(end, end_momentum)
    # An energy that is no number is never accepted.
    probability = jnp.where(jnp.isnan(log_ratio), 0.0, jnp.exp(jnp.minimum(log_ratio, 0.0)))
    accepted = noise.threshold < probability
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), end, point), probability
