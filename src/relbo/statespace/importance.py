"""The posterior of a few parameters of a series, by adaptive importance sampling.

With a handful of parameters a fitted proposal needs a hundred times fewer evaluations than
chains, no gradients, and gives the evidence as well. The weights show whether it has worked.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar
from numpyro import handlers

from relbo.core.checks import check_integer
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.importance import importance_estimate
from relbo.evaluate.record import Evaluation
from relbo.problem import Problem, read
from relbo.problem.arrays import DataLike, as_array
from relbo.problem.traces import Model, run

_DEGREES = 5.0
"""Degrees of freedom of the proposal's t distributions."""
_NUM_ROUNDS = 5
"""Number of rounds in which the proposal adapts, and of rounds in which it is fixed."""
_NUM_PRIOR_DRAWS = 500
_LARGEST_KEPT = 20
"""While the proposal adapts, larger weights are clipped to the weight of this rank."""
_MAX_RUNS = 4
"""Maximum number of times that the rounds are repeated if few draws are effective."""
_ENOUGH = 0.1
"""The share of effective draws with which the rounds are not repeated."""


class ImportanceDraws(NamedTuple):
    """Draws from the posterior of a series, resampled by their weights."""

    draws: dict[str, Float[Array, "draws ..."]]
    """Draws by site."""
    evidence: Evaluation
    """The log evidence, with the effective sample size and the Pareto k of the weights."""


class _Proposal(NamedTuple):
    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]


def importance_draws(
    key: KeyLike, model: Model, series: DataLike, *, num_draws: int, num_weighed: int = 2_000
) -> ImportanceDraws:
    """Draws from the posterior of a model with a few parameters.

    A t distribution is fitted to the posterior in five rounds, beginning with the prior. Then
    its draws are weighted, and resampled by their weights. All rounds are repeated if fewer
    than a tenth of the draws are effective.

    Args:
        key: a random key or an integer seed.
        model: a NumPyro model of one series, without subsampled plates or discrete sites. The
            compiled program is kept for the same model and series of the same length.
        series: the argument of the model.
        num_draws: number of draws to return.
        num_weighed: number of weighted draws from which they are resampled.

    Returns:
        An `ImportanceDraws`.

    Example:
        >>> model = StructuralModel(period=12)
        >>> found = importance_draws(0, model, load_co2().values[:120], num_draws=500)
        >>> found.evidence.value, found.evidence.ess
    """
    values = jnp.asarray(as_array("series", series), jnp.result_type(float))
    return draw_by_importance(key, model, values, num_draws=num_draws, num_weighed=num_weighed)


def draw_by_importance(
    key: KeyLike, model: Model, values: Any, *, num_draws: int, num_weighed: int = 2_000
) -> ImportanceDraws:
    """Draws as `importance_draws` does, for a model that takes any pytree of arrays."""
    check_integer("num_draws", num_draws, 1)
    check_integer("num_weighed", num_weighed, 50 * _NUM_ROUNDS)
    problem = read(model, (values,))
    first_key, choice_key, *keys = jr.split(as_key(key), 2 + _MAX_RUNS)
    proposal = _prior_moments(problem, first_key)
    while True:
        proposal, points, log_weights = _run_rounds(
            problem, num_weighed // _NUM_ROUNDS, keys.pop(0), proposal
        )
        evidence = importance_estimate(np.asarray(log_weights), estimator="fitted t")
        if (evidence.ess or 0.0) >= _ENOUGH * num_weighed or not keys:
            break
    draws = _resample(problem, num_draws, choice_key, points, log_weights)
    return ImportanceDraws(draws, evidence)


@jax.jit
def _prior_moments(problem: Problem, key: PRNGKeyArray) -> _Proposal:
    def draw(key: PRNGKeyArray) -> Float[Array, " d"]:
        trace = run(handlers.seed(problem.program.model, key), problem.call)
        return problem.unconstrain(
            {site.name: trace[site.name]["value"] for site in problem.sites}
        )

    draws = jax.vmap(draw)(jr.split(key, _NUM_PRIOR_DRAWS))
    return _moments(draws, jnp.full(_NUM_PRIOR_DRAWS, 1.0 / _NUM_PRIOR_DRAWS))


@partial(jax.jit, static_argnums=1)
def _run_rounds(
    problem: Problem, size: int, key: PRNGKeyArray, proposal: _Proposal
) -> tuple[_Proposal, Float[Array, "n d"], Float[Array, " n"]]:
    """Adapts the proposal, then returns it with weighted draws."""

    # One loop for both kinds of rounds, because the density takes long to compile.
    def step(proposal: _Proposal, inputs: tuple) -> tuple[_Proposal, tuple[Array, Array]]:
        key, adapts = inputs
        points, log_weights = _weigh(key, proposal, problem.logdensity, size)
        cap = jnp.sort(log_weights)[-_LARGEST_KEPT]
        adapted = _moments(points, jax.nn.softmax(jnp.minimum(log_weights, cap)))
        following = jax.tree.map(partial(jnp.where, adapts), adapted, proposal)
        return following, (points, log_weights)

    adapts = jnp.arange(2 * _NUM_ROUNDS) < _NUM_ROUNDS
    keys = jr.split(key, len(adapts))
    proposal, (points, log_weights) = jax.lax.scan(step, proposal, (keys, adapts))
    last = points[_NUM_ROUNDS:]
    return proposal, last.reshape(-1, last.shape[-1]), log_weights[_NUM_ROUNDS:].ravel()


@partial(jax.jit, static_argnums=1)
def _resample(
    problem: Problem, num_draws: int, key: PRNGKeyArray, points: Array, log_weights: Array
) -> dict[str, Array]:
    """Returns draws in proportion to their weights, by systematic resampling."""
    levels = (jnp.arange(num_draws) + jr.uniform(key)) / num_draws
    index = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_weights)), levels)
    draws = jax.vmap(problem.constrain)(points[jnp.minimum(index, len(points) - 1)])
    return {site.name: draws[site.name] for site in problem.sites}


def _weigh(
    key: PRNGKeyArray, proposal: _Proposal, logdensity: Callable[[Array], Scalar], number: int
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    root = jnp.linalg.cholesky(proposal.covariance)
    noise = jr.t(key, _DEGREES, (number, len(proposal.mean)))
    points = proposal.mean[None] + noise @ root.T
    log_volume = jnp.sum(jnp.log(jnp.diagonal(root)))
    log_q = jnp.sum(jax.scipy.stats.t.logpdf(noise, _DEGREES), axis=1) - log_volume
    log_p = jax.vmap(logdensity)(points)
    return points, jnp.where(jnp.isnan(log_p), -jnp.inf, log_p) - log_q


def _moments(points: Float[Array, "n d"], weights: Float[Array, " n"]) -> _Proposal:
    mean = weights @ points
    away = points - mean[None]
    covariance = (away * weights[:, None]).T @ away
    # Wider than the draws and never degenerate, so that the proposal covers the tails.
    unit = jnp.eye(len(mean), dtype=covariance.dtype)
    return _Proposal(mean, 1.2 * covariance + 5e-3 * unit)
