"""Trains and evaluates a refined guide from several random seeds in one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Key, PyTree, Scalar

from relbo import RESULTS, AbstractBase, Refined, Refinement, refined_objective
from relbo_paper.harness.optimise import LogDensity, Minimised, minimise


class LearnedGuide(NamedTuple):
    """The base density and the sampler that starts from it; both are learned."""

    base: AbstractBase
    refinement: Refinement


class SeedFits(NamedTuple):
    """Fits from S seeds; every array of the guides has a leading axis S."""

    guides: LearnedGuide
    losses: Float[Array, "seeds iterations"]
    watched: PyTree = None
    """What was watched, along leading axes `[seeds, iterations]`."""


class SeedEvaluations(NamedTuple):
    """Estimates from fresh draws, one per seed."""

    objective: Float[Array, " seeds"]
    variance: PyTree
    """The variance of each coordinate of the refined position."""
    failed: Float[Array, " seeds"]
    """Share of draws whose refinement failed."""
    folded: Float[Array, " seeds"]
    """Share of draws where a change of variables was seen to fold space."""


def fit_seeds(
    keys: Key[Array, " seeds"],
    guide: LearnedGuide,
    logdensity_fn: LogDensity,
    optimiser: optax.GradientTransformation,
    *,
    num_iterations: int,
    num_draws: int,
    snapshot: int | None = None,
    watch: Callable[[LearnedGuide], PyTree] | None = None,
) -> SeedFits:
    """Maximises the refined objective of `guide` once for each key, in one compiled program.

    Args:
        keys: one per seed.
        guide: the initial guide of every seed.
        logdensity_fn: log p(x, z).
        optimiser: updates the inexact arrays of the guide.
        num_iterations: number of updates.
        num_draws: number of draws per update.
        snapshot: return the guides after this many updates instead of after the last.
        watch: returns what to record of the guide after each update.
    """
    params, static = eqx.partition(guide, eqx.is_inexact_array)
    # Skips updates with a non-finite gradient: a single draw of the batch may have failed.
    optimiser = optax.apply_if_finite(optimiser, max_consecutive_errors=num_iterations)

    def loss_fn(params: PyTree, key: Key[Array, ""]) -> Scalar:
        base, refinement = eqx.combine(params, static)
        objective = refined_objective(key, refinement, base, logdensity_fn, num_draws=num_draws)
        return -objective.value

    def watch_both(params: PyTree) -> tuple[PyTree, PyTree]:
        learned: Any = eqx.combine(params, static)
        return None if snapshot is None else params, watch and watch(learned)

    def fit(key: Key[Array, ""]) -> Minimised:
        found = minimise(
            key, loss_fn, params, optimiser, num_iterations=num_iterations, watch=watch_both
        )
        history, watched = found.watched
        if snapshot is None:
            return found._replace(watched=watched)
        last = snapshot - 1
        then = jax.tree.map(lambda leaf: leaf[last], history)
        return Minimised(then, found.losses, watched)

    fits = jax.jit(jax.vmap(fit))(keys)
    return SeedFits(eqx.combine(fits.params, static), fits.losses, fits.watched)


def evaluate_seeds(
    keys: Key[Array, " seeds"],
    guides: LearnedGuide,
    logdensity_fn: LogDensity,
    *,
    num_draws: int,
    chunk: int = 5_000,
) -> SeedEvaluations:
    """Estimates the objective of each seed's guide from fresh draws.

    `num_draws` is rounded up to whole chunks, which bound the memory.
    """
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def evaluate(params: PyTree, key: Key[Array, ""]) -> SeedEvaluations:
        base, refinement = eqx.combine(params, static)

        def one_chunk(key: Key[Array, ""]) -> tuple[SeedEvaluations, PyTree]:
            # `refined_objective` returns the weights but not the positions.
            refined = refinement(key, base, logdensity_fn, num_draws=chunk)
            log_weights = jax.vmap(logdensity_fn)(refined.position) - refined.log_q
            failed = (refined.result != RESULTS.successful) | jnp.isnan(log_weights)
            objective = jnp.mean(jnp.where(failed, -jnp.inf, log_weights))
            mean = jax.tree.map(lambda z: jnp.mean(z, axis=0), refined.position)
            square = jax.tree.map(lambda z: jnp.mean(z**2, axis=0), refined.position)
            folded = jnp.mean(~refined.one_to_one)
            return SeedEvaluations(objective, square, jnp.mean(failed), folded), mean

        chunks = jax.lax.map(one_chunk, jr.split(key, -(-num_draws // chunk)))
        whole, mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), chunks)
        return whole._replace(
            variance=jax.tree.map(lambda square, m: square - m**2, whole.variance, mean)
        )

    return jax.jit(jax.vmap(evaluate))(params, keys)


def draw_seeds(
    keys: Key[Array, " seeds"],
    guides: LearnedGuide,
    logdensity_fn: LogDensity,
    *,
    num_draws: int,
) -> Refined:
    """Draws from each seed's refined guide, along leading axes `[seeds, draws]`."""
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def draw(params: PyTree, key: Key[Array, ""]) -> Refined:
        base, refinement = eqx.combine(params, static)
        return refinement(key, base, logdensity_fn, num_draws=num_draws)

    return jax.jit(jax.vmap(draw))(params, keys)
