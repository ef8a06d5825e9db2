"""Log marginal likelihoods from importance weights."""

import math
import warnings
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
from relbo.evaluate.record import Evaluation, PointwiseEvaluation

MIN_SPREAD = 1e-5
"""Log weights that differ by less are equal up to rounding."""
MIN_DRAWS = 25
"""With fewer draws the tail has fewer than five, and its shape cannot be estimated."""


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


def pareto_smoothed(
    log_weights: np.ndarray | Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes Pareto-smoothed importance weights, by ArviZ.

    Args:
        log_weights: log weights, with the draws along the last axis.

    Returns:
        The smoothed log weights, normalised over the draws, and the tail shape k, one per row.
        If the largest weights are all equal, k is zero. If k cannot be estimated, for example
        from fewer than 25 draws, the weights are not smoothed and k is infinite.
    """
    rows = np.asarray(log_weights, np.float64)
    rows = np.where(np.isnan(rows), -np.inf, rows)
    shape = rows.shape
    smoothed = [_smooth_row(row) for row in rows.reshape(-1, shape[-1])]
    return (
        np.reshape([row for row, _ in smoothed], shape),
        np.reshape([k for _, k in smoothed], shape[:-1]),
    )


def _smooth_row(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    if not np.isfinite(np.max(log_weights)):
        return np.full_like(log_weights, -np.log(log_weights.size)), np.inf
    # ArviZ versions differ in these two cases, so they are handled here.
    plain = log_weights - np.logaddexp.reduce(log_weights)
    if np.ptp(_tail(log_weights)) < MIN_SPREAD:
        return plain, 0.0
    if log_weights.size < MIN_DRAWS:
        return plain, np.inf
    smoothed, k = _psislw(_floored(log_weights))
    return (np.asarray(smoothed), float(k)) if np.isfinite(k) else (plain, np.inf)


def _tail(log_weights: np.ndarray) -> np.ndarray:
    """Returns the largest weights that Pareto smoothing uses, and the next one."""
    number = log_weights.size
    length = math.ceil(min(number / 5, 3 * math.sqrt(number)))
    return np.sort(log_weights)[-length - 1 :]


def _floored(log_weights: np.ndarray) -> np.ndarray:
    """Raises weights of zero to a tiny number; ArviZ would subtract infinities."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return log_weights
    return np.maximum(log_weights, top + np.log(np.finfo(np.float64).tiny))


def _psislw(log_weights: np.ndarray) -> tuple[Any, Any]:
    """Calls the smoothing of the installed version of ArviZ.

    ArviZ 0.x has `arviz.psislw`, which takes log weights. ArviZ 1.x has it in `arviz_stats`,
    where it takes their negative (the log likelihood of a point that is left out).
    """
    with warnings.catch_warnings():
        # ArviZ 0.23 announces its successor at each import.
        warnings.simplefilter("ignore")
        # Imported here, because it takes seconds.
        import arviz

        if hasattr(arviz, "psislw"):
            return arviz.psislw(log_weights)
        from arviz_stats.base import (  # pyright: ignore[reportMissingImports]
            array_stats,
        )

        return array_stats.psislw(-log_weights)


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
        values = smoothed + _floored(values)[middle] - smoothed[middle]
    mean = log_mean(jnp.asarray(values - _top(values)))
    return Evaluation(
        float(mean.value) + _top(values),
        float(mean.stderr),
        estimator,
        valid_bound,
        values.size,
        float(mean.ess),
        float(k),
    )


def _top(values: np.ndarray) -> float:
    top = float(np.nanmax(values, initial=-np.inf))
    return top if np.isfinite(top) else 0.0


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
