"""Pareto-smoothed importance weights.

ArviZ has them too, but takes seconds to import, and `Posterior.check` needs one number.

References:
    Vehtari, Simpson, Gelman, Yao and Gabry, Pareto smoothed importance sampling, 2024.
    Zhang and Stephens, A new and efficient estimation method for the generalized Pareto
    distribution, 2009.
"""

import math

import numpy as np
from jaxtyping import Array, Float

MIN_SPREAD = 1e-5
"""Log weights that differ by less are equal up to rounding."""
MIN_DRAWS = 25
"""With fewer draws the tail has fewer than five, and its shape cannot be estimated."""
PRIOR_SHAPE, PRIOR_DRAWS = 0.5, 10
"""An estimate of the shape is averaged with this one, which counts for ten draws."""


def pareto_smoothed(
    log_weights: np.ndarray | Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes Pareto-smoothed importance weights.

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


def floored(log_weights: np.ndarray) -> np.ndarray:
    """Raises weights of zero to a tiny number."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return log_weights
    return np.maximum(log_weights, top + np.log(np.finfo(np.float64).tiny))


def _smooth_row(log_weights: Float[np.ndarray, " n"]) -> tuple[np.ndarray, float]:
    number = log_weights.size
    if not np.isfinite(np.max(log_weights)):
        return np.full_like(log_weights, -np.log(number)), np.inf
    plain = log_weights - np.logaddexp.reduce(log_weights)
    order = np.argsort(log_weights)
    length = math.ceil(min(number / 5, 3 * math.sqrt(number)))
    if np.ptp(log_weights[order[-length - 1 :]]) < MIN_SPREAD:
        return plain, 0.0
    if number < MIN_DRAWS:
        return plain, np.inf
    values = floored(log_weights) - np.max(log_weights)
    cut = values[order[-length - 1]]
    # Weights that equal the last one left out are not in the tail.
    tail = order[values[order] > cut]
    if len(tail) < 5:
        return plain, np.inf
    k, scale = _fit_tail(np.exp(values[tail]) - np.exp(cut))
    if not np.isfinite(k):
        return plain, np.inf
    shares = (np.arange(len(tail)) + 0.5) / len(tail)
    excess = scale * np.expm1(-k * np.log1p(-shares)) / k
    values[tail] = np.minimum(np.log(excess + np.exp(cut)), 0.0)
    return values - np.logaddexp.reduce(values), k


def _fit_tail(excess: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Returns the shape and the scale of a generalised Pareto distribution.

    They are averages over a grid of b = - shape / scale, each weighted by its profile
    likelihood. For each b the likeliest shape is the mean of log(1 - b x). The values x, the
    excess, are positive and sorted.
    """
    number = len(excess)
    num_points = 30 + int(number**0.5)
    quartile = excess[int(number / 4 + 0.5) - 1]
    spread = 1.0 - np.sqrt(num_points / (np.arange(num_points) + 0.5))
    grid = 1.0 / excess[-1] + spread / (3.0 * quartile)
    shapes = np.mean(np.log1p(-grid[:, None] * excess), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_likelihoods = number * (np.log(-grid / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihoods - np.nanmax(log_likelihoods))
    weights = np.where(np.isfinite(weights), weights, 0.0)
    b = float(np.sum(weights * grid) / np.sum(weights))
    shape = float(np.mean(np.log1p(-b * excess)))
    scale = -shape / b
    return (number * shape + PRIOR_DRAWS * PRIOR_SHAPE) / (number + PRIOR_DRAWS), scale
