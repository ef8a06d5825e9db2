"""Normals of draws and scores, on normals where they are known."""

import numpy as np
import pytest

from relbo.gaussian import WhiteningNormal, normal_of_draws
from relbo.gaussian.fisher import geometric_mean, low_rank_normal

SIZE = 12


def _random_covariance(rng, size):
    root = np.eye(size) + 0.5 * rng.normal(size=(size, size))
    return root @ root.T


def test_the_geometric_mean_solves_its_equation():
    rng = np.random.default_rng(0)
    covariance, precision = (_random_covariance(rng, SIZE) for _ in range(2))
    found = geometric_mean(covariance, precision)
    np.testing.assert_allclose(found @ precision @ found, covariance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_few_draws_with_scores_show_a_normal(seed):
    """Three draws for each coordinate: their own covariance is off by half."""
    rng = np.random.default_rng(seed)
    mean, covariance = rng.normal(size=SIZE), _random_covariance(rng, SIZE)
    points = rng.multivariate_normal(mean, covariance, 3 * SIZE)
    score = -(points - mean) @ np.linalg.inv(covariance)
    start = WhiteningNormal(mean + 0.1, np.linalg.cholesky(covariance) * 1.1)
    white = start.pull(points)
    distances = []
    for scores in (start.pulled_score(score), None):
        found, _ = normal_of_draws(start, white, scores)
        whitened = found.pull(np.linalg.cholesky(covariance).T + found.loc)
        distances.append(np.linalg.norm(whitened @ whitened.T - np.eye(SIZE)))
    # With scores only the present normal, which counts for some draws, adds an error.
    assert distances[0] < 0.2 < distances[1] / 4
    found, _ = normal_of_draws(start, white, start.pulled_score(score))
    assert np.max(np.abs(start.pull(found.loc[None]) - start.pull(mean[None]))) < 0.03


@pytest.mark.parametrize("size", [60, 400])
def test_a_diagonal_with_a_few_stretched_axes_is_found(size):
    """From fewer draws than coordinates, at scales over four decades."""
    rng = np.random.default_rng(1)
    loadings = rng.normal(size=(size, 3)) * np.array([1.0, 3.0, 9.0]) / size**0.5 * 3
    scale, mean = 10 ** rng.uniform(-2, 2, size), rng.normal(size=size)
    inner = np.linalg.inv(np.eye(3) + loadings.T @ loadings)

    def draws(number):
        centred = rng.normal(size=(number, size)) + rng.normal(size=(number, 3)) @ loadings.T
        score = -(centred - (centred @ loadings) @ inner @ loadings.T)
        return scale * (mean + centred), score / scale

    normal = low_rank_normal(*draws(200))
    points, score = draws(1000)
    white, white_score = normal.pull(points), normal.pulled_score(score)
    # In white coordinates a score is minus its draw.
    residual = np.linalg.svd((white + white_score) / 1000**0.5, compute_uv=False)
    assert residual[0] < 0.7, residual[:5]
    before = np.linalg.svd(((points / scale - mean) + score * scale) / 1000**0.5)[1]
    assert before[0] > 10
