"""Factors against their matrices."""

import numpy as np
import pytest

from relbo.gaussian import LowRankFactor, factors

SIZE, RANK = 6, 2


def _low_rank(rng):
    axes = np.linalg.qr(rng.normal(size=(SIZE, RANK)))[0]
    scale, stretch = np.exp(rng.normal(size=SIZE)), np.array([0.2, 5.0])
    matrix = scale[:, None] * (np.eye(SIZE) + (axes * (stretch - 1)) @ axes.T)
    # Unused axes are zero.
    axes, stretch = np.pad(axes, ((0, 0), (0, 1))), np.append(stretch, 1.0)
    return LowRankFactor(scale, axes, stretch), matrix


def _diagonal(rng):
    scale = np.exp(rng.normal(size=SIZE))
    return scale, np.diag(scale)


def _dense(rng):
    matrix = rng.normal(size=(SIZE, SIZE))
    return matrix, matrix


@pytest.mark.parametrize("kind", [_low_rank, _diagonal, _dense])
def test_products_and_solutions_are_those_of_the_matrix(kind):
    rng = np.random.default_rng(0)
    factor, matrix = kind(rng)
    rows, scale = rng.normal(size=(4, SIZE)), np.exp(rng.normal(size=SIZE))
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(factors.times(factor, rows), rows @ matrix.T)
    np.testing.assert_allclose(factors.times_transposed(factor, rows), rows @ matrix)
    np.testing.assert_allclose(factors.solve(factor, rows), rows @ inverse.T, atol=1e-9)
    np.testing.assert_allclose(
        factors.solve_transposed(factor, rows), rows @ inverse, atol=1e-9
    )
    np.testing.assert_allclose(factors.log_det(factor), np.linalg.slogdet(matrix)[1])
    wider = factors.rescaled(factor, scale)
    np.testing.assert_allclose(factors.times(wider, rows), rows @ matrix.T * scale)
