"""Normals of draws and their scores, with the least Fisher divergence from the density.

If the density is normal, they are exact as soon as there are more draws than directions to
learn, since the score is a linear function of the draw.

References:
    Seyboldt, Carlson and Carpenter, Preconditioning Hamiltonian Monte Carlo by minimizing
    Fisher divergence, 2026.
"""

import numpy as np
from jaxtyping import Float

from relbo.gaussian.factors import LowRankFactor, times, times_transposed
from relbo.gaussian.whitening import WhiteningNormal

MAX_RANKS = (32, 128)
"""Numbers of stretched axes, of which the smallest that suffices is used: each is compiled."""
MIN_STRETCH = 0.2
"""An axis counts if the logarithm of its stretch is larger."""
LITTLE = 0.1
"""The number of draws that an axis of length one counts for."""
NUM_SCALINGS = 3
"""How often the diagonal and the axes are fitted in turn."""
MAX_ROWS = 512
"""The largest number of draws from which stretched axes are found."""


def normal_of_draws(
    normal: WhiteningNormal,
    white: Float[np.ndarray, "n d"],
    score: Float[np.ndarray, "n d"] | None = None,
) -> tuple[WhiteningNormal, float]:
    """Returns the normal of draws, and their distance from standard normal ones.

    Args:
        normal: the present normal, dense or diagonal, which counts for a few draws.
        white: draws in its white coordinates.
        score: the scores there; without them the normal has the moments of the draws.
    """
    number, size = white.shape
    mean = np.mean(white, 0)
    prior = 5.0 + 0.1 * size
    if not normal.is_dense:
        by = np.sqrt((np.sum((white - mean) ** 2, 0) + prior) / (number + prior))
    elif score is None:
        by = np.linalg.cholesky(_covariance(white, prior))
    else:
        covariance = geometric_mean(_covariance(white, prior), _covariance(score, prior))
        mean = mean + covariance @ np.mean(score, 0)
        by = np.linalg.cholesky(covariance)
    return normal.moved(mean, by), distance_from_white(white)


def distance_from_white(white: Float[np.ndarray, "n d"]) -> float:
    """Returns the largest distance of a mean from 0 or of a log standard deviation from 0."""
    # Short windows have noisy variances.
    prior = 5.0 + 0.1 * white.shape[1]
    squares = np.sum((white - white.mean(0)) ** 2, 0)
    variances = (squares + prior) / (len(white) + prior)
    return float(max(np.max(np.abs(white.mean(0))), 0.5 * np.max(np.abs(np.log(variances)))))


def low_rank_normal(
    points: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> WhiteningNormal:
    """Returns the normal with a diagonal factor and a few stretched axes.

    The axes span what the diagonal leaves: where the draws are standard normal, a score is
    minus its draw, so the sum of both shows the other directions, and nothing else.
    """
    some = np.linspace(0, len(points) - 1, min(MAX_ROWS, len(points))).astype(int)
    centred, slopes = (values[some] - values[some].mean(0) for values in (points, score))
    scale, basis = _scale_and_axes(centred, slopes)
    covariance = geometric_mean(
        _covariance((centred / scale) @ basis, LITTLE),
        _covariance((slopes * scale) @ basis, LITTLE),
    )
    variances, rotation = np.linalg.eigh(covariance)
    stretch, axes = _padded(np.sqrt(variances), basis @ rotation)
    factor = LowRankFactor(scale, axes, stretch)
    shift = times(factor, times_transposed(factor, score.mean(0)))
    return WhiteningNormal(points.mean(0) + shift, factor)


def _scale_and_axes(
    centred: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d k"]]:
    """Fits the diagonal, and the directions that it leaves, in turn."""
    size = centred.shape[1]
    scale, basis = np.ones(size), np.zeros((size, 0))
    number = min(MAX_RANKS[-1], len(centred) // 4, size // 2)
    for _ in range(NUM_SCALINGS):
        wide, steep = (_without(basis, v).std(0) for v in (centred / scale, score * scale))
        scale = scale * np.sqrt(wide / np.maximum(steep, 1e-300))
        basis = _principal_axes(centred / scale + score * scale, number)
    return scale, basis


def _without(basis: Float[np.ndarray, "d k"], rows: Float[np.ndarray, "n d"]) -> np.ndarray:
    return rows - (rows @ basis) @ basis.T


def geometric_mean(
    covariance: Float[np.ndarray, "d d"], precision: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, "d d"]:
    """Returns the symmetric A with A precision A = covariance."""
    values, axes = np.linalg.eigh(precision)
    root = (axes * np.sqrt(values)) @ axes.T
    inverse_root = (axes / np.sqrt(values)) @ axes.T
    values, axes = np.linalg.eigh(root @ covariance @ root)
    half = inverse_root @ (axes * np.maximum(values, 0.0) ** 0.25)
    return half @ half.T


def _covariance(values: Float[np.ndarray, "n d"], prior: float) -> Float[np.ndarray, "d d"]:
    """Returns the covariance of draws together with `prior` draws of covariance one."""
    number, size = values.shape
    centred = values - values.mean(0)
    return (centred.T @ centred + prior * np.eye(size)) / (number + prior)


def _principal_axes(rows: Float[np.ndarray, "n d"], number: int) -> Float[np.ndarray, "d k"]:
    """Returns orthonormal directions in which the rows vary most."""
    values, vectors = np.linalg.eigh(rows @ rows.T)
    largest = np.arange(len(values) - number, len(values))
    kept = largest[values[largest] > 1e-10 * values[-1]]
    return np.linalg.qr(rows.T @ (vectors[:, kept] / np.sqrt(values[kept])))[0]


def _padded(
    stretch: Float[np.ndarray, " k"], axes: Float[np.ndarray, "d k"]
) -> tuple[Float[np.ndarray, " r"], Float[np.ndarray, "d r"]]:
    """Keeps the axes that are stretched most, and fills up with zeros to a common number."""
    order = np.argsort(-np.abs(np.log(stretch)))
    order = order[np.abs(np.log(stretch[order])) > MIN_STRETCH]
    rank = next(rank for rank in MAX_RANKS if len(order) <= rank or rank == MAX_RANKS[-1])
    order = order[:rank]
    unused = rank - len(order)
    return np.pad(stretch[order], (0, unused), constant_values=1.0), np.pad(
        axes[:, order], ((0, 0), (0, unused))
    )
