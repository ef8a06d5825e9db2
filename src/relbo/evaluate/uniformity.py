"""A test of uniformity, with an envelope for the whole empirical distribution function."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import bdtr, bdtrc, gammaln

MAX_POINTS = 300
"""The largest number of points at which the distribution function is compared."""


class Envelope(NamedTuple):
    """Where the empirical distribution function of uniform numbers stays."""

    points: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]


def uniformity_pvalue(values: Float[np.ndarray, " n"]) -> float:
    """Tests whether independent numbers between 0 and 1 are uniform.

    At each of many points the share of values below it is compared with its binomial
    distribution. The statistic is the smallest of these two-sided tail probabilities; its own
    distribution is computed exactly. The test sees a shift, a wrong width and wrong tails
    equally well, where that of Kolmogorov and Smirnov hardly sees the tails.

    Args:
        values: the numbers.

    Returns:
        The probability of a statistic as small as this one if the numbers are uniform.

    References:
        Säilynoja, Bürkner and Vehtari, Graphical test for discrete uniformity and its
        applications in goodness-of-fit evaluation and multiple sample comparison, 2022.
    """
    points = _points(len(values))
    counts = np.searchsorted(np.sort(values), points, side="right")
    tails = _tail_probabilities(len(values), points)
    statistic = np.min(tails[np.arange(len(points)), counts])
    return float(1.0 - _probability(tails > statistic))


def uniform_envelope(number: int, level: float) -> Envelope:
    """Returns the envelope that `number` uniform values leave with probability `level`.

    It contains a distribution function exactly if `uniformity_pvalue` is above `level`.

    Args:
        number: number of values.
        level: the probability that some point is outside.
    """
    points = _points(number)
    tails = _tail_probabilities(number, points)
    # The probability of leaving the envelope grows with the statistic.
    low, high = np.log(level) - np.log(2.0 * len(points)), 0.0
    for _ in range(30):
        middle = (low + high) / 2
        is_rare = 1.0 - _probability(tails > np.exp(middle)) <= level
        low, high = (middle, high) if is_rare else (low, middle)
    is_inside = tails > np.exp(low)
    first = np.argmax(is_inside, axis=1)
    last = number - np.argmax(is_inside[:, ::-1], axis=1)
    return Envelope(points, first / number, last / number)


def _points(number: int) -> Float[np.ndarray, " points"]:
    num_points = min(number, MAX_POINTS)
    return np.arange(1, num_points) / num_points


def _tail_probabilities(
    number: int, points: Float[np.ndarray, " points"]
) -> Float[np.ndarray, "points counts"]:
    """Returns two-sided tail probabilities of each count of values below each point."""
    counts = np.arange(number + 1)
    at_most = bdtr(counts, number, points[:, None])
    at_least = np.concatenate(
        [np.ones((len(points), 1)), bdtrc(counts[:-1], number, points[:, None])], 1
    )
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least))


def _probability(is_inside: Bool[np.ndarray, "points counts"]) -> float:
    """Returns the probability that uniform values have an allowed count at every point.

    The counts of uniform values at evenly spaced points are those of a Poisson process given
    its total, so that every step is a convolution with the same probabilities.
    """
    num_points, number = is_inside.shape[0] + 1, is_inside.shape[1] - 1
    counts = np.arange(number + 1)
    step = _poisson(counts, number / num_points)
    state = np.zeros(number + 1)
    state[0] = 1.0
    for allowed in is_inside:
        state = np.where(allowed, np.convolve(state, step)[: number + 1], 0.0)
    return float(np.dot(state, step[::-1]) / _poisson(counts, float(number))[-1])


def _poisson(counts: np.ndarray, mean: float) -> np.ndarray:
    return np.exp(counts * np.log(mean) - mean - gammaln(counts + 1.0))
