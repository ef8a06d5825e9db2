"""Point estimates (a Dirac guide), with steps of a sampler inside or without."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Key, PyTree, Scalar

from relbo import SGD, Dirac, ParticleAccount, Refinement, refined_objective
from relbo_paper.harness.optimise import LogDensity, minimise


class PointRecipe(NamedTuple):
    """How a point estimate is trained."""

    num_steps: int
    """T, the number of SGD steps inside the guide."""
    learning_rate: float
    """The learning rate of Adam, which moves the point where these steps start."""
    step_size: float = 1e-3
    """The step size of the SGD steps."""

    @property
    def name(self) -> str:
        return f"T={self.num_steps}" + (f" SGD {self.step_size:g}" if self.num_steps else "")


class PointFits(NamedTuple):
    """Point estimates from S starting points."""

    positions: PyTree
    """The refined points after the last update."""
    losses: Float[Array, "starts iterations"]
    """Minus the log density at the refined point, before each update."""


class PointOptimiser:
    """Maximises a log density over a refined point, in fast mode.

    The log density is over unconstrained coordinates without a Jacobian, both in the kernel
    and in the objective: what is maximised is the density of the model's own parameters. Each
    number of steps is compiled once, whatever the learning rate and the step size.

    Args:
        logdensity_fn: the log density at one position.
        num_iterations: number of updates.
    """

    def __init__(self, logdensity_fn: LogDensity, num_iterations: int):
        self.logdensity_fn = logdensity_fn
        self.num_iterations = num_iterations
        self._run = jax.jit(self._fit_all, static_argnums=1)

    def fit(self, starts: PyTree, recipe: PointRecipe) -> PointFits:
        """Optimises from every starting point along the leading axis of `starts`."""
        return self._run(starts, recipe.num_steps, recipe[1:])

    def seconds_per_iteration(self, starts: PyTree, recipe: PointRecipe) -> float:
        """Measures the compiled loop from the first starting point alone.

        Returns the shortest of up to 50 runs within a second, because other work on the machine
        can only make a run longer.
        """
        first = jax.tree.map(lambda leaf: leaf[:1], starts)
        jax.block_until_ready(self.fit(first, recipe))
        times = []
        while len(times) < 3 or (len(times) < 50 and sum(times) < 1.0):
            begin = time.perf_counter()
            jax.block_until_ready(self.fit(first, recipe))
            times.append(time.perf_counter() - begin)
        return min(times) / self.num_iterations

    def _fit_all(self, starts: PyTree, num_steps: int, sizes: tuple) -> PointFits:
        return jax.vmap(lambda start: self._fit_one(start, num_steps, *sizes))(starts)

    def _fit_one(
        self, start: PyTree, num_steps: int, learning_rate: Scalar, step_size: Scalar
    ) -> PointFits:
        refinement = Refinement(
            SGD(step_size),
            ParticleAccount(),
            num_steps=num_steps,
            mode="fast",
            anneal=False,
            space="unconstrained",
        )
        key = jr.key(0)  # SGD draws no random numbers

        def loss_fn(point: PyTree, _: Key[Array, ""]) -> Scalar:
            return -refined_objective(key, refinement, Dirac(point), self.logdensity_fn).value

        found = minimise(
            key, loss_fn, start, optax.adam(learning_rate), num_iterations=self.num_iterations
        )
        refined = refinement(key, Dirac(found.params), self.logdensity_fn)
        return PointFits(refined.position, found.losses)


def best_of(positions: PyTree, losses: Float[Array, " starts"]) -> PyTree:
    """Returns the position with the smallest finite loss."""
    winner = jnp.nanargmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))
    return jax.tree.map(lambda leaf: leaf[winner], positions)
