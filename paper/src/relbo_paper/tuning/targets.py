"""The three densities of the tuning experiment, with known moments."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Scalar

from relbo import model_from_logdensity, sample
from relbo_paper.models import FUNNEL_SCALE, funnel_logdensity

CORRELATION = 0.9
_EXACT_DRAWS = 400_000


class TuningTarget(NamedTuple):
    """A density, and the statistics whose means are estimated."""

    name: str
    size: int
    logdensity_fn: Callable[[Float[Array, " d"]], Scalar]
    statistics: Callable[[Float[Array, " d"]], Float[Array, " s"]]
    mean: Float[np.ndarray, " s"]
    """The mean of the statistics, exact or from very many draws."""
    variance: Float[np.ndarray, " s"]


def targets(*, quick: bool) -> list[TuningTarget]:
    """Returns the funnel, a correlated Gaussian and a logistic regression."""
    return [_funnel(), _gaussian(), _logistic(num_draws=8_000 if quick else 40_000)]


def _from_draws(
    name: str,
    logdensity_fn: Callable[[Array], Scalar],
    statistics: Callable[[Array], Array],
    draws: Float[np.ndarray, "n d"],
) -> TuningTarget:
    values = np.asarray(jax.vmap(statistics)(jnp.asarray(draws)))
    return TuningTarget(
        name, draws.shape[1], logdensity_fn, statistics, values.mean(0), values.var(0)
    )


def _funnel() -> TuningTarget:
    rng = np.random.default_rng(0)
    log_width = FUNNEL_SCALE * rng.normal(size=_EXACT_DRAWS)
    draws = np.stack([log_width, np.exp(log_width) * rng.normal(size=_EXACT_DRAWS)], axis=1)
    # The tails of z2 are too heavy for its average to converge in an affordable run.
    statistics = lambda z: jnp.stack([z[0], z[0] ** 2, jnp.arcsinh(z[1])])
    return _from_draws("funnel", funnel_logdensity, statistics, draws)


def _moments(z: Float[Array, " d"]) -> Float[Array, " 2*d"]:
    return jnp.concatenate([z, z**2])


def _gaussian(size: int = 10) -> TuningTarget:
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    covariance = CORRELATION**distance
    precision = jnp.asarray(np.linalg.inv(covariance))
    logdensity_fn = lambda z: -0.5 * z @ precision.astype(z.dtype) @ z
    one = np.ones(size)
    return TuningTarget(
        "correlated Gaussian",
        size,
        logdensity_fn,
        _moments,
        np.concatenate([0 * one, one]),
        np.concatenate([one, 2 * one]),
    )


def _logistic(num_draws: int, num_rows: int = 200, size: int = 5) -> TuningTarget:
    rng = np.random.default_rng(1)
    # The columns have different scales, and two of them are strongly correlated.
    inputs = rng.normal(size=(num_rows, size)) * np.array([1.0, 1.0, 0.3, 3.0, 1.0])
    inputs[:, 1] = 0.9 * inputs[:, 0] + 0.4 * inputs[:, 1]
    chance = 1 / (1 + np.exp(-inputs @ np.array([1.0, -0.5, 1.0, 0.3, 0.0])))
    labels = jnp.asarray(rng.uniform(size=num_rows) < chance)
    inputs = jnp.asarray(inputs)

    def logdensity_fn(z: Float[Array, " d"]) -> Scalar:
        logits = inputs.astype(z.dtype) @ z
        fit = jnp.sum(
            jnp.where(labels, jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits))
        )
        return fit - 0.5 * jnp.sum((z / 5.0) ** 2)

    program = model_from_logdensity(logdensity_fn, jnp.zeros(size))
    posterior = sample(jr.key(2), program, num_draws=num_draws, progress=False)
    draws = np.asarray(next(iter(posterior.draws.values())))
    return _from_draws("logistic regression", logdensity_fn, _moments, draws)
