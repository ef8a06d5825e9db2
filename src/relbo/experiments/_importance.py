"""Posteriors of many series at once, by adaptive importance sampling.

With a handful of parameters a fitted proposal is all that it takes, and a hundred times fewer
evaluations than a chain for every series. That it has worked is not taken on trust: the
effective number of draws is returned, and one series is sampled exactly beside it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, Scalar
from numpyro import handlers
from numpyro.distributions import biject_to

from relbo._program import Call, Model, latent_names, logdensity, run

_DEGREES = 5.0
_NUM_ROUNDS = 5
_LARGEST_KEPT = 20
"""While the proposal adapts, no draw weighs more than the one of this rank."""


class WindowDraws(NamedTuple):
    """Draws of the parameters of each series."""

    draws: dict[str, Float[Array, "series draws"]]
    effective: Float[Array, " series"]
    """How many independent draws the weights are worth."""


class _Proposal(NamedTuple):
    mean: Float[Array, " d"]
    covariance: Float[Array, "d d"]


def importance_draws(
    key: PRNGKeyArray,
    model: Model,
    series: Float[Array, "series t"],
    *,
    num_draws: int,
    num_weighed: int = 2_000,
) -> WindowDraws:
    """Draws from the posterior of each series under the same program.

    Args:
        key: a random key.
        model: a program that takes one series.
        series: one a row.
        num_draws: how many draws to return for each.
        num_weighed: how many to weigh for them.
    """
    keys = jr.split(key, len(series))
    solve = partial(_one_series, model, num_draws, num_weighed)
    draws, effective = jax.jit(lambda *pairs: jax.lax.map(solve, pairs))(keys, series)
    return WindowDraws(draws, effective)


def _one_series(
    model: Model, num_draws: int, num_weighed: int, pair: Any
) -> tuple[dict[str, Array], Scalar]:
    key, series = pair
    call = Call((series,), {})
    sites = run(handlers.seed(model, 0), call)
    # Of this series: how a site is constrained may depend on it.
    transforms = {name: biject_to(sites[name]["fn"].support) for name in latent_names(sites)}

    def from_prior(key: PRNGKeyArray) -> Array:
        trace = run(handlers.seed(model, key), call)
        values = {name: to.inv(trace[name]["value"]) for name, to in transforms.items()}
        return ravel_pytree(values)[0]

    unravel = ravel_pytree(
        {name: to.inv(sites[name]["value"]) for name, to in transforms.items()}
    )[1]

    def log_prob(flat: Array) -> Scalar:
        value = logdensity(model, call, jr.key(0), unravel(flat), {})
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def adapt(proposal: _Proposal, key: PRNGKeyArray) -> tuple[_Proposal, None]:
        points, log_weights = _weigh(key, proposal, log_prob, num_weighed // 5)
        cap = jnp.sort(log_weights)[-_LARGEST_KEPT]
        return _moments(points, jax.nn.softmax(jnp.minimum(log_weights, cap))), None

    keys = jr.split(key, _NUM_ROUNDS + 2)
    start_key, last_key, choice_key = keys[:3]
    prior = jax.vmap(from_prior)(jr.split(start_key, 500))
    # In a loop of the program's, since the density is long to compile.
    proposal, _ = jax.lax.scan(adapt, _moments(prior, jnp.full(500, 1.0 / 500)), keys[3:])
    points, log_weights = _weigh(last_key, proposal, log_prob, num_weighed)
    weights = jax.nn.softmax(log_weights)
    chosen = points[_systematic(choice_key, weights, num_draws)]
    draws = jax.vmap(lambda flat: {n: transforms[n](u) for n, u in unravel(flat).items()})(
        chosen
    )
    return draws, 1.0 / jnp.sum(weights**2)


def _weigh(
    key: PRNGKeyArray, proposal: _Proposal, log_prob: Any, number: int
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    root = jnp.linalg.cholesky(proposal.covariance)
    noise = jr.t(key, _DEGREES, (number, len(proposal.mean)))
    points = proposal.mean[None] + noise @ root.T
    log_q = jnp.sum(jax.scipy.stats.t.logpdf(noise, _DEGREES), axis=1)
    return points, jax.vmap(log_prob)(points) - log_q


def _moments(points: Float[Array, "n d"], weights: Float[Array, " n"]) -> _Proposal:
    mean = weights @ points
    away = points - mean[None]
    covariance = (away * weights[:, None]).T @ away
    # Wider than what was seen, and never flat: a proposal must reach beyond its own draws.
    return _Proposal(mean, 1.2 * covariance + 5e-3 * jnp.eye(len(mean)))


def _systematic(
    key: PRNGKeyArray, weights: Float[Array, " n"], number: int
) -> Float[Array, " m"]:
    """Indices in proportion to the weights, evenly spread."""
    levels = (jnp.arange(number) + jr.uniform(key)) / number
    index = jnp.searchsorted(jnp.cumsum(weights), levels)
    return jnp.minimum(index, len(weights) - 1)
