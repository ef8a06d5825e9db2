"""Moments of draws against the truth, and bulk effective sample sizes."""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

PREFIXES = 20


class Moments(NamedTuple):
    """Mean and variance of each latent, and the variance of (x - mean)^2."""

    mean: np.ndarray
    variance: np.ndarray
    spread: np.ndarray


def gaussian_moments(mean: np.ndarray, variance: np.ndarray) -> Moments:
    return Moments(mean, variance, 2.0 * variance**2)


def mixture_moments(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> Moments:
    """Returns the moments of a mixture of normals, `[components, latents]`."""
    mean = weights @ means
    square = (means - mean) ** 2
    variance = weights @ (square + variances)
    fourth = weights @ (3.0 * variances**2 + 6.0 * variances * square + square**2)
    return Moments(mean, variance, fourth - variance**2)


def draw_moments(draws: np.ndarray) -> Moments:
    """Returns the moments of draws, `[chains, draws, latents]`."""
    mean, variance = draws.mean((0, 1)), draws.var((0, 1))
    return Moments(mean, variance, ((draws - mean) ** 2).var((0, 1)))


def moment_errors(draws: np.ndarray, truth: Moments, prefixes: int = PREFIXES) -> np.ndarray:
    """Returns the largest error of the first 1/n, 2/n, ... of the draws of each chain.

    The error of a moment is its squared error over the variance of the quantity averaged; the
    moments are the mean and the second moment around the true mean.
    """
    length = draws.shape[1]
    ends = np.unique(np.ceil(np.arange(1, prefixes + 1) * length / prefixes).astype(int))
    largest = np.zeros(prefixes)
    for part in _chunks(draws.shape[2]):
        centred = draws[:, :, part] - truth.mean[part]
        count = draws.shape[0] * ends[:, None]
        first = np.cumsum(centred.sum(0), 0)[ends - 1] / count
        second = np.cumsum((centred**2).sum(0), 0)[ends - 1] / count
        errors = np.maximum(
            first**2 / truth.variance[part],
            (second - truth.variance[part]) ** 2 / truth.spread[part],
        ).max(1)
        errors = np.where(np.isnan(errors), np.inf, errors)
        where = np.searchsorted(ends, np.ceil(np.arange(1, prefixes + 1) * length / prefixes))
        largest = np.maximum(largest, errors[where])
    return largest


def bulk_ess(draws: np.ndarray) -> np.ndarray:
    """Computes the bulk effective sample size of each latent from `[chains, draws, latents]`.

    Ranks of the split chains are turned into normal scores, and autocorrelations are summed
    as far as Geyer's initial monotone sequence goes (Vehtari et al., 2021), as ArviZ does.
    """
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]], 0)
    return np.concatenate([_ess(halves[:, :, part]) for part in _chunks(draws.shape[2])])


def _ess(draws: np.ndarray) -> np.ndarray:
    chains, length, size = draws.shape
    total = chains * length
    if not np.all(np.isfinite(draws)) or length < 4:
        return np.full(size, np.nan)
    ranks = rankdata(draws.reshape(total, size), axis=0)
    scores = ndtri((ranks - 0.375) / (total + 0.25)).reshape(draws.shape)
    means = scores.mean(1)
    spectrum = np.fft.rfft(scores - means[:, None], n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(0) / length
    within = covariance[0] * length / (length - 1)
    variance = covariance[0] + (means.var(0, ddof=1) if chains > 1 else 0.0)
    correlation = 1.0 - (within - covariance) / np.where(variance > 0, variance, 1.0)
    correlation[0] = 1.0
    pairs = correlation[: length // 2 * 2].reshape(length // 2, 2, size).sum(1)
    positive = np.cumprod(pairs > 0, axis=0)
    pairs = np.minimum.accumulate(np.where(positive, pairs, 0.0), axis=0)
    time = np.maximum(2.0 * pairs.sum(0) - 1.0, 1.0 / np.log10(total))
    return np.where(variance > 0, total / time, np.nan)


def _chunks(size: int, width: int = 256) -> list[slice]:
    return [slice(start, start + width) for start in range(0, size, width)]
