"""Trains one guide from many seeds, all in one compiled program."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Key, PyTree, Scalar

from relbo.bases import AbstractBase
from relbo.objective import refined_objective
from relbo.refinement import Refinement

LogDensity = Callable[[PyTree], Scalar]


class Guide(NamedTuple):
    """What is learned: where the walk starts, and the sampler that walks."""

    base: AbstractBase
    refinement: Refinement


class Fit(NamedTuple):
    """A fit from S seeds; every array of the guide has a leading axis S."""

    guide: Guide
    losses: Float[Array, "seeds iterations"]


class Evaluation(NamedTuple):
    """What fresh draws say of a guide, one number a seed."""

    objective: Float[Array, " seeds"]
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
) -> Fit:
    """Maximises the refined objective of `guide` once for each key.

    The draws of an iteration depend on the key and the number of the iteration alone, so that
    a shorter fit is the beginning of a longer one.
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

    def fit(key: Key[Array, ""]) -> tuple[PyTree, Array]:
        def update(carry: tuple[PyTree, PyTree], iteration: Array) -> tuple[tuple, Scalar]:
            params, state = carry
            loss, grads = jax.value_and_grad(loss_fn)(params, jr.fold_in(key, iteration))
            updates, state = optimiser.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        start = (params, optimiser.init(params))
        (end, _), losses = jax.lax.scan(update, start, jnp.arange(num_iterations))
        return end, losses

    end, losses = jax.jit(jax.vmap(fit))(keys)
    return Fit(eqx.combine(end, static), losses)


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
    num_chunks = -(-num_draws // chunk)
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def evaluate_chunk(guide: Guide, key: Key[Array, ""]) -> Evaluation:
        refined = guide.refinement(key, guide.base, logdensity_fn, num_particles=chunk)
        log_weights = jax.vmap(logdensity_fn)(refined.position) - refined.log_q
        failed = (refined.result != type(refined.result).successful) | jnp.isnan(log_weights)
        return Evaluation(
            jnp.mean(jnp.where(failed, -jnp.inf, log_weights)),
            jnp.mean(failed),
            jnp.mean(~refined.one_to_one),
        )

    def evaluate(params: PyTree, key: Key[Array, ""]) -> Evaluation:
        guide = eqx.combine(params, static)
        chunks = jax.lax.map(lambda k: evaluate_chunk(guide, k), jr.split(key, num_chunks))
        return jax.tree.map(jnp.mean, chunks)

    return jax.jit(jax.vmap(evaluate))(params, keys)


def draw_seeds(
    keys: Key[Array, " seeds"], guides: Guide, logdensity_fn: LogDensity, *, num_draws: int
) -> PyTree:
    """Draws from each seed's refined guide, `[seeds, draws, ...]`."""
    params, static = eqx.partition(guides, eqx.is_inexact_array)

    def draw(params: PyTree, key: Key[Array, ""]) -> PyTree:
        base, refinement = eqx.combine(params, static)
        return refinement(key, base, logdensity_fn, num_particles=num_draws).position

    return jax.jit(jax.vmap(draw))(params, keys)
