"""Square factors of covariances: matrices, diagonals, and diagonals with a few stretched axes.

A matrix is an array with two axes and a diagonal one with one. All functions take rows of
vectors, from NumPy or JAX.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float


class LowRankFactor(NamedTuple):
    r"""A diagonal times a matrix that stretches a few orthonormal axes:

    $$D (I + U (S - I) U^\top).$$

    Unused axes are zero.
    """

    scale: Float[np.ndarray, " d"] | Float[Array, " d"]
    axes: Float[np.ndarray, "d k"] | Float[Array, "d k"]
    stretch: Float[np.ndarray, " k"] | Float[Array, " k"]

    def stretched(self, rows: Any, by: Any) -> Any:
        return rows + ((rows @ self.axes) * (by - 1.0)) @ self.axes.T


Factor = Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | LowRankFactor
JaxFactor = Float[Array, "d d"] | Float[Array, " d"] | LowRankFactor


def times(factor: Any, rows: Any) -> Any:
    """Multiplies each row by the factor."""
    if isinstance(factor, LowRankFactor):
        return factor.scale * factor.stretched(rows, factor.stretch)
    return rows @ factor.T if factor.ndim == 2 else rows * factor


def times_transposed(factor: Any, rows: Any) -> Any:
    """Multiplies each row by the transpose of the factor."""
    if isinstance(factor, LowRankFactor):
        return factor.stretched(rows * factor.scale, factor.stretch)
    return rows @ factor if factor.ndim == 2 else rows * factor


def solve(factor: Factor, rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Multiplies each row by the inverse of the factor."""
    if isinstance(factor, LowRankFactor):
        return factor.stretched(rows / factor.scale, 1.0 / factor.stretch)
    return np.linalg.solve(factor, rows.T).T if factor.ndim == 2 else rows / factor


def solve_transposed(
    factor: Factor, rows: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n d"]:
    """Multiplies each row by the transposed inverse of the factor."""
    if isinstance(factor, LowRankFactor):
        return factor.stretched(rows, 1.0 / factor.stretch) / factor.scale
    return np.linalg.solve(factor.T, rows.T).T if factor.ndim == 2 else rows / factor


def log_det(factor: Factor) -> float:
    """Returns the logarithm of the absolute determinant."""
    if isinstance(factor, LowRankFactor):
        return float(np.sum(np.log(np.abs(factor.scale))) + np.sum(np.log(factor.stretch)))
    if factor.ndim == 2:
        return float(np.linalg.slogdet(factor)[1])
    return float(np.sum(np.log(np.abs(factor))))


def as_matrix(factor: Factor) -> Float[np.ndarray, "d d"]:
    """Returns the factor as a matrix."""
    if isinstance(factor, LowRankFactor):
        return times(factor, np.eye(len(factor.scale))).T
    return factor if factor.ndim == 2 else np.diag(factor)


def is_diagonal(factor: Factor) -> bool:
    return not isinstance(factor, LowRankFactor) and factor.ndim == 1


def rescaled(factor: Any, scale: Float[np.ndarray, " d"]) -> Any:
    """Multiplies the factor by a diagonal from the left."""
    if isinstance(factor, LowRankFactor):
        return factor._replace(scale=scale * factor.scale)
    return scale[:, None] * factor if factor.ndim == 2 else scale * factor
