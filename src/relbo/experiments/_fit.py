"""Trains one guide from many seeds, all in one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Key, PyTree, Scalar

from relbo._walk import RESULTS
from relbo.bases import AbstractBase
from relbo.objective import refined_objective
from relbo.refinement import Refined, Refinement

LogDensity = Callable[[PyTree], Scalar]


class Guide(NamedTuple):
    """What is learned: where the walk starts, and the sampler that walks."""

    base: AbstractBase
    refinement: Refinement


class Fit(NamedTuple):
    """A fit from S seeds; every array of a guide has a leading axis S."""

    guides: Guide
    losses: Float[Array, "seeds iterations"]
    watched: PyTree = None
    """What was watched, along leading axes `[seeds, iterations]`."""


class Evaluation(NamedTuple):
    """What fresh draws say of a guide, one number a seed."""

    objective: Float[Array, " seeds"]
    variance: PyTree
    """Of the refined position, coordinate by coordinate."""
    failed: Float[Array, " seeds"]
    """The share of walks that failed."""
    folded: Float[Array, " seeds"]
    """The share of walks where a change of variables was seen to fold space."""


def fit_seeds(
    keys: Key[Array, " seeds"],
    guide: Guide,
    logdensity_fn: LogDensity,
    optimiser: optax.GradientTransformation,
    *,
    num_iterations: int,
    num_draws: int,
    snapshot: int | None = None,
    watch: Callable[[Guide], PyTree] | None = None,
) -> Fit:
    """Maximises the refined objective of `guide` once for each key.

    Args:
        keys: one a seed.
        guide: where every seed starts from.
        logdensity_fn: log p(x, z).
        optimiser: updates what is inexact in the guide.
        num_iterations: how many updates.
        num_draws: draws an update.
        snapshot: return the guides after this many updates instead of after the last.
        watch: of the guide, what is to be recorded after each update.
    """
    params, static = eqx.partition(guide, eqx.is_inexact_array)
    # A batch of draws may hold one that failed; such an update is left out.
    optimiser = optax.apply_if_finite(optimiser, max_consecutive_errors=num_iterations)

    def loss_fn(params: PyTree, key: Key[Array, ""]) -> Scalar:
        base, refinement = eqx.combine(params, static)
        objective = refined_objective(
            key, refinement, base, logdensity_fn, num_particles=num_draws
        )
        return -objective.value

    def update(carry: tuple[PyTree, PyTree], key: Key[Array, ""]) -> tuple[tuple, tuple]:
        params, state = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, key)
        updates, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        guide: Any = eqx.combine(params, static)
        seen = None if watch is None else watch(guide)
        return (params, state), (loss, None if snapshot is None else params, seen)

    def fit(key: Key[Array, ""]) -> tuple[PyTree, Array, PyTree]:
        start = (params, optimiser.init(params))
        (end, _), (losses, history, seen) = jax.lax.scan(
            update, start, jr.split(key, num_iterations)
        )
        if snapshot is not None:
            last = snapshot - 1
            end = jax.tree.map(lambda leaf: leaf[last], history)
        return end, losses, seen

    end, losses, watched = jax.jit(jax.vmap(fit))(keys)
    return Fit(eqx.combine(end, static), losses, watched)


def evaluate_seeds(
    keys: Key[Array, " seeds"],
    guides: Guide,
    logdensity_fn: LogDensity,
    *,
    num_draws: int,
    chunk: int = 5_000,
) -> Evaluation:
    """Estimates the objective of each seed's guide with fresh draws.

    `num_draws` is rounded up to whole chunks, which keep the memory small.
    """
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def evaluate(params: PyTree, key: Key[Array, ""]) -> Evaluation:
        base, refinement = eqx.combine(params, static)

        def one_chunk(key: Key[Array, ""]) -> tuple[Evaluation, PyTree]:
            # `refined_objective` would give the weights but not where the draws are.
            refined = refinement(key, base, logdensity_fn, num_particles=chunk)
            log_weights = jax.vmap(logdensity_fn)(refined.position) - refined.log_q
            failed = (refined.result != RESULTS.successful) | jnp.isnan(log_weights)
            objective = jnp.mean(jnp.where(failed, -jnp.inf, log_weights))
            mean = jax.tree.map(lambda z: jnp.mean(z, axis=0), refined.position)
            square = jax.tree.map(lambda z: jnp.mean(z**2, axis=0), refined.position)
            folded = jnp.mean(~refined.one_to_one)
            return Evaluation(objective, square, jnp.mean(failed), folded), mean

        chunks = jax.lax.map(one_chunk, jr.split(key, -(-num_draws // chunk)))
        whole, mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), chunks)
        return whole._replace(
            variance=jax.tree.map(lambda square, m: square - m**2, whole.variance, mean)
        )

    return jax.jit(jax.vmap(evaluate))(params, keys)


def draw_seeds(
    keys: Key[Array, " seeds"], guides: Guide, logdensity_fn: LogDensity, *, num_draws: int
) -> Refined:
    """Draws from each seed's refined guide, along leading axes `[seeds, draws]`."""
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def draw(params: PyTree, key: Key[Array, ""]) -> Refined:
        base, refinement = eqx.combine(params, static)
        return refinement(key, base, logdensity_fn, num_particles=num_draws)

    return jax.jit(jax.vmap(draw))(params, keys)
