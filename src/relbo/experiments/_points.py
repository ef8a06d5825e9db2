"""Point estimates: a Dirac guide, with steps of a sampler inside or without.

All densities here are over unconstrained coordinates and have no Jacobian, in the kernel and in
the objective alike: what is climbed is the density of the parameters as the model has them.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.bases import Dirac
from relbo.entropy import Particle
from relbo.kernels import SGD
from relbo.objective import refined_objective
from relbo.refinement import Refinement

LogDensity = Callable[[PyTree], Scalar]


class Recipe(NamedTuple):
    """How a point is trained."""

    num_steps: int
    """T, the steps of SGD inside."""
    learning_rate: float
    """Of Adam, which moves the point that they start from."""
    step_size: float = 1e-3
    """Of the steps inside."""

    @property
    def name(self) -> str:
        return f"T={self.num_steps}" + (f" SGD {self.step_size:g}" if self.num_steps else "")


class PointFit(NamedTuple):
    """What S seeds came to."""

    positions: PyTree
    """The refined points after the last update."""
    losses: Float[Array, "seeds iterations"]
    """Minus the log density at the refined point, before each update."""


class Climber:
    """Climbs one log density in fast mode; a grid of recipes compiles once for each T.

    Args:
        logdensity_fn: the log density at one position.
        num_iterations: updates of Adam.
    """

    def __init__(self, logdensity_fn: LogDensity, num_iterations: int):
        self.logdensity_fn = logdensity_fn
        self.num_iterations = num_iterations
        self._run = jax.jit(self._climb_all, static_argnums=1)

    def fit(self, starts: PyTree, recipe: Recipe) -> PointFit:
        """Climbs from every start along the leading axis of `starts`."""
        return PointFit(*self._run(starts, recipe.num_steps, recipe[1:]))

    def seconds_per_iteration(self, starts: PyTree, recipe: Recipe) -> float:
        """Of the first start alone, compiled: the shortest of many runs within a second.

        Other work on the machine can only make a run longer.
        """
        first = jax.tree.map(lambda leaf: leaf[:1], starts)
        jax.block_until_ready(self.fit(first, recipe))
        times = []
        while len(times) < 3 or (len(times) < 50 and sum(times) < 1.0):
            begin = time.perf_counter()
            jax.block_until_ready(self.fit(first, recipe))
            times.append(time.perf_counter() - begin)
        return min(times) / self.num_iterations

    def _climb_all(self, starts: PyTree, num_steps: int, sizes: tuple) -> tuple[PyTree, Array]:
        return jax.vmap(lambda start: self._climb(start, num_steps, *sizes))(starts)

    def _climb(
        self, start: PyTree, num_steps: int, learning_rate: Scalar, step_size: Scalar
    ) -> tuple[PyTree, Array]:
        refinement = Refinement(SGD(step_size), Particle(), num_steps=num_steps, mode="fast")
        optimiser = optax.adam(learning_rate)
        key = jr.key(0)  # SGD draws nothing

        def loss_fn(point: PyTree) -> Scalar:
            return -refined_objective(key, refinement, Dirac(point), self.logdensity_fn).value

        def update(carry: tuple, _: None) -> tuple[tuple, Scalar]:
            point, state = carry
            loss, slope = jax.value_and_grad(loss_fn)(point)
            changes, state = optimiser.update(slope, state, point)
            return (optax.apply_updates(point, changes), state), loss

        begin = (start, optimiser.init(start))
        (point, _), losses = jax.lax.scan(update, begin, length=self.num_iterations)
        return refinement(key, Dirac(point), self.logdensity_fn).position, losses


def best_of(positions: PyTree, losses: Float[Array, " starts"]) -> PyTree:
    """The position with the smallest loss; one that is not finite never wins."""
    winner = jnp.nanargmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))
    return jax.tree.map(lambda leaf: leaf[winner], positions)
