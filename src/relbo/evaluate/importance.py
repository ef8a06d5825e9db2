"""Log marginal likelihoods from importance weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from relbo.core.checks import check_integer
from relbo.core.random import KeyLike
from relbo.core.weights import log_mean_exp
from relbo.evaluate.batches import map_with_keys
from relbo.evaluate.pareto import floored, pareto_smoothed
from relbo.evaluate.record import Evaluation, PointwiseEvaluation


class LogMean(NamedTuple):
    """The logarithm of a mean weight, its standard error and the effective sample size."""

    value: Float[Array, "..."]
    stderr: Float[Array, "..."]
    ess: Float[Array, "..."]


def log_mean(log_weights: Float[Array, "... draws"]) -> LogMean:
    r"""Computes the logarithm of the mean weight along the last axis, with its error.

    With normalised weights $\bar w$ of n draws,

    $$\text{ess} = \frac{1}{\sum_i \bar w_i^2}, \qquad
      \text{stderr}^2 = \frac{n}{n - 1} \left( \frac{1}{\text{ess}} - \frac1n \right),$$

    the second by the delta method. A NaN weight counts as zero, which keeps the estimate a
    lower bound.

    Args:
        log_weights: log weights of independent draws.

    Returns:
        A `LogMean`; if no weight is positive, minus infinity with an infinite error.
    """
    number = log_weights.shape[-1]
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    value = log_mean_exp(log_weights)
    is_finite = jnp.isfinite(value)
    shares = jnp.exp(log_weights - jnp.where(is_finite, value, 0.0)[..., None]) / number
    squares = jnp.sum(jnp.square(shares), axis=-1)
    # Around the mean share: the difference of 1 / ess and 1 / n would lose its digits.
    variance = jnp.sum(jnp.square(shares - 1.0 / number), axis=-1) * number / max(number - 1, 1)
    stderr = jnp.where(is_finite & (number > 1), jnp.sqrt(variance), jnp.inf)
    ess = jnp.where(is_finite, 1.0 / jnp.where(is_finite, squares, 1.0), 0.0)
    return LogMean(value, stderr, ess)


def pointwise(
    means: LogMean,
    estimator: str,
    num_draws: int,
    *,
    valid_bound: bool = True,
    pareto_k: np.ndarray | None = None,
) -> PointwiseEvaluation:
    """Returns the means of all data points as an evaluation."""
    value, stderr, ess = (np.asarray(leaf) for leaf in means)
    return PointwiseEvaluation(value, stderr, estimator, valid_bound, num_draws, ess, pareto_k)


def importance_estimate(
    log_weights: np.ndarray | Array,
    *,
    estimator: str = "importance weighting",
    valid_bound: bool | None = True,
    smooth: bool = False,
) -> Evaluation:
    r"""Estimates the log marginal likelihood from log weights: $\log \frac1n \sum_i w_i$.

    Its expectation is a lower bound if the expectation of each weight is the marginal
    likelihood.

    Args:
        log_weights: log p(x, z) - log q(z) of independent draws.
        estimator: the name of the estimator in reports.
        valid_bound: whether the weights come from a valid account.
        smooth: average Pareto-smoothed weights instead, which has less variance and some bias,
            and is not a bound.

    Returns:
        An `Evaluation`.

    Example:
        >>> import jax.numpy as jnp
        >>> importance_estimate(jnp.full(100, -3.0)).value
        -3.0
    """
    # In double precision, so that weights of size e^300 keep their digits.
    values = np.asarray(log_weights, np.float64)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(
            f"log_weights: expected a vector of at least 2, got the shape {values.shape}"
        )
    smoothed, k = pareto_smoothed(values)
    if smooth:
        valid_bound, estimator = None, f"Pareto-smoothed {estimator}"
        # Only the tail is smoothed, so the median weight gives the normalising constant.
        middle = np.argsort(values)[values.size // 2]
        values = smoothed + floored(values)[middle] - smoothed[middle]
    value, stderr = log_mean_weight(np.where(np.isnan(values), -np.inf, values))
    number = values.size
    # What `log_mean` says of the error, solved for the effective sample size.
    ess = number / (1.0 + (number - 1) * stderr**2)
    return Evaluation(value, stderr, estimator, valid_bound, number, ess, float(k))


def log_mean_weight(log_weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Computes the log of the mean weight and its standard error; nothing is compiled."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return float(top), np.inf
    weights = np.exp(log_weights - top)
    mean = weights.mean()
    return float(top + np.log(mean)), float(weights.std(ddof=1) / mean / len(weights) ** 0.5)


def importance_weighting(
    key: KeyLike,
    source: Callable[[PRNGKeyArray], tuple[Any, Scalar]],
    *,
    num_draws: int = 1_000,
    batch_size: int | None = None,
    estimator: str = "importance weighting",
    valid_bound: bool | None = True,
    smooth: bool = False,
    mesh: Mesh | None = None,
) -> Evaluation:
    """Estimates the log marginal likelihood from a function that returns weighted draws.

    Args:
        key: a random key or an integer seed.
        source: a function from a key to a draw and its log weight, log p(x, z) - log q(z). The
            arrays of an `equinox.Module` (or `equinox.Partial`) are passed as arguments, so
            that another one of the same shapes is not compiled again.
        num_draws: number of draws.
        batch_size: number of draws at a time; by default all.
        estimator: the name of the estimator in reports.
        valid_bound: whether the weights come from a valid account.
        smooth: average Pareto-smoothed weights; see `importance_estimate`.
        mesh: the devices that share the draws; by default all, as in `relbo.fit`.

    Returns:
        An `Evaluation`.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> def source(key):
        ...     z, log_q = base.sample(key)
        ...     return z, -jnp.sum(z**2) - log_q
        >>> estimate = importance_weighting(jr.key(0), source)
    """
    check_integer("num_draws", num_draws, 2)
    log_weights = map_with_keys(
        key,
        eqx.Partial(_log_weight, source),
        num_draws,
        batch_size=batch_size or num_draws,
        mesh=mesh,
    )
    return importance_estimate(
        log_weights, estimator=estimator, valid_bound=valid_bound, smooth=smooth
    )


def _log_weight(
    source: Callable[[PRNGKeyArray], tuple[Any, Scalar]], key: PRNGKeyArray
) -> Scalar:
    return source(key)[1]
