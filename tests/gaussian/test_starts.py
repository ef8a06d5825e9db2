"""Starting points: one in each basin, and one where there is one basin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.gaussian import NormalFitter, WhiteningNormal, compiled_evaluate
from relbo.gaussian.starts import (
    MAX_STARTS,
    Climbs,
    basins_of,
    climb,
    distinct_starts,
    plain_normal,
)
from relbo.problem import read

POINTS = 64


def evaluator(logdensity, size):
    problem = read(relbo.model_from_logdensity(logdensity, jnp.zeros(size)))
    return compiled_evaluate(problem, POINTS)


def starts_of(logdensity, size, seed, start=None):
    rng = np.random.default_rng(seed)
    start = np.zeros(size) if start is None else start
    return distinct_starts(rng, evaluator(logdensity, size), start, POINTS, True).points


def two_normals(distance):
    def logdensity(z):
        parts = [-0.5 * jnp.sum((z - side * distance / 2) ** 2) for side in (-1.0, 1.0)]
        return jnp.logaddexp(parts[0] + jnp.log(0.3), parts[1] + jnp.log(0.7))

    return logdensity


def correlated(z):
    steps = jnp.diff(z, prepend=0.0)
    return -0.5 * jnp.sum(steps**2) / 0.01


def logistic(z):
    x = jnp.linspace(-2.0, 2.0, 20)
    logits = z[0] + z[1] * x
    y = (x > 0.3).astype(float)
    return jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * logits)) - 0.05 * jnp.sum(z**2)


def funnel(z):
    return -0.5 * (z[0] / 1.35) ** 2 - 0.5 * jnp.sum((z[1:] * jnp.exp(-z[0])) ** 2) - z[0]


def student(z):
    return -2.0 * jnp.sum(jnp.log1p(z**2 / 3))


ONE_BASIN = {
    "correlated": (correlated, 5),
    "logistic": (logistic, 2),
    "funnel": (funnel, 2),
    "student": (student, 4),
    "near": (two_normals(1.5), 3),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ONE_BASIN)
def test_one_basin_has_one_start(name, seed):
    logdensity, size = ONE_BASIN[name]
    assert len(starts_of(logdensity, size, seed)) <= 2  # the given one, and a summit at most
    fitter = NormalFitter(
        np.random.default_rng(seed), evaluator(logdensity, size), size, POINTS, POINTS
    )
    assert len(fitter.fit().modes) == 1


@pytest.mark.parametrize("size", [1, 3, 10])
def test_two_basins_have_two_starts(size):
    first, *others = starts_of(two_normals(12.0), size, 0)
    assert np.all(first == 0)
    np.testing.assert_allclose(others, [size * [6.0], size * [-6.0]], atol=0.05)
    fitter = NormalFitter(
        np.random.default_rng(0), evaluator(two_normals(12.0), size), size, POINTS, POINTS
    )
    heavy, light = fitter.fit().modes
    # Fits of one component each; the first has the higher evidence.
    np.testing.assert_allclose(heavy.loc, 6.0, atol=0.05)
    np.testing.assert_allclose(light.loc, -6.0, atol=0.5)


def test_the_first_start_stands_for_the_only_basin():
    start = np.full(3, 0.5)
    (found,) = starts_of(lambda z: -0.5 * jnp.sum(z**2), 3, 0, start)
    np.testing.assert_array_equal(found, start)


def test_mirrored_factors_are_two_modes():
    rng = np.random.default_rng(1)
    scores, loadings = rng.normal(size=6), np.array([1.0, -0.8, 1.3])
    y = np.outer(scores, loadings) + 0.5 * rng.normal(size=(6, 3))

    def logdensity(z):
        means = z[:6, None] * z[None, 6:]
        return -0.5 * jnp.sum(z**2) - 0.5 * jnp.sum((y - means) ** 2) / 0.25

    fitter = NormalFitter(np.random.default_rng(0), evaluator(logdensity, 9), 9, POINTS, POINTS)
    one, other = fitter.fit().modes
    scale = np.sqrt(np.diagonal(one.factor @ one.factor.T))
    np.testing.assert_allclose((one.loc + other.loc) / scale, 0.0, atol=0.5)


def test_points_that_step_off_the_support_climb_back():
    def half_line(z):
        return jnp.where(jnp.all(z > 0), jnp.sum(jnp.log(z) - z), -jnp.inf)

    rng = np.random.default_rng(0)
    plain = WhiteningNormal(np.zeros(2), np.eye(2))
    points = rng.uniform(-1.0, 4.0, (POINTS, 2))
    summits, heights, _ = climb(evaluator(half_line, 2), plain, points)
    inside = np.all(points > 0, 1)
    np.testing.assert_array_equal(np.isfinite(heights), inside)
    np.testing.assert_allclose(summits[inside], 1.0, atol=0.05)


def test_no_more_starts_than_allowed():
    grid = 8.0 * jnp.stack(jnp.meshgrid(*2 * [jnp.arange(-1.0, 2.0)]), -1).reshape(-1, 2)
    logdensity = lambda z: jax.nn.logsumexp(-0.5 * jnp.sum((z[None] - grid) ** 2, 1))
    assert 4 < len(starts_of(logdensity, 2, 0)) <= MAX_STARTS + 1


def test_more_basins_than_can_be_followed_are_noticed():
    two = lambda z: -2.0 * (z[0] ** 2 - 4.0) ** 2 - 0.5 * jnp.sum(z[1:] ** 2)
    many = lambda z: -2.0 * jnp.sum((z**2 - 4.0) ** 2)  # 32 summits
    for logdensity, is_complete in ((two, True), (many, False)):
        found = distinct_starts(
            np.random.default_rng(0), evaluator(logdensity, 5), np.zeros(5), POINTS, True
        )
        assert found.is_complete is is_complete


def wave(z):
    """The frequency of a sine: hundreds of narrow basins."""
    times = jnp.asarray(np.random.default_rng(0).uniform(0.0, 100.0, 100))
    w = 12.0 * jax.nn.sigmoid(z[0])
    return -0.5 * jnp.sum((jnp.sin(w * times) - jnp.sin(6.6 * times)) ** 2) / 0.25


@pytest.mark.parametrize("seed", range(3))
def test_the_highest_of_very_many_summits_is_found_or_others_are_suspected(seed):
    found = distinct_starts(
        np.random.default_rng(seed), evaluator(wave, 1), np.zeros(1), POINTS, True
    )
    # The climbs begin with steps that do not leave a basin of width 0.02.
    truth = np.log(6.6 / (12.0 - 6.6))
    assert abs(found.summit[0] - truth) < 1e-3 or not found.is_complete


def test_climbs_that_are_alone_in_a_basin_say_how_many_are_not_seen():
    evaluate = evaluator(lambda z: jnp.cos(2 * jnp.pi * z[0]) * 10.0, 1)
    tops = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0])[:, None]
    climbs = Climbs(tops, np.full(8, 10.0), np.ones(8, bool))
    basins = basins_of(evaluate, plain_normal(1, True), POINTS, climbs)
    assert len(basins.leaders) == 5
    assert basins.probability_unseen == 3 / 8
    together = basins_of(
        evaluate, plain_normal(1, True), POINTS, Climbs(*(c[:3] for c in climbs))
    )
    assert together == ([0], 0.0)
