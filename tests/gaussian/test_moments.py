"""Scales and locations that depend on the place, learned from exact draws and scores."""

import numpy as np
import pytest

from relbo.gaussian import WhiteningNormal, whitening_of_draws
from relbo.gaussian.factors import as_matrix

NUMBER = 4000
SD = 1.35
"""The standard deviation of the funnels' first coordinate."""
SEEDS = range(5)


def funnel(rng, num_children, number=NUMBER, sd=SD):
    """z1 ~ N(0, sd), all others ~ N(0, exp z1)."""
    log_scale = sd * rng.normal(size=(number, 1))
    children = np.exp(log_scale) * rng.normal(size=(number, num_children))
    standard = children * np.exp(-log_scale)
    of_parent = -log_scale / sd**2 + np.sum(standard**2 - 1.0, 1, keepdims=True)
    score = np.concatenate([of_parent, -standard * np.exp(-log_scale)], 1)
    return np.concatenate([log_scale, children], 1), score


def banana(rng, number=NUMBER):
    """z1 ~ N(0, 1), z2 ~ N(z1 squared, 0.5)."""
    parent = rng.normal(size=number)
    rest = 0.5 * rng.normal(size=number)
    score = np.stack([-parent + 2 * parent * rest / 0.25, -rest / 0.25], 1)
    return np.stack([parent, parent**2 + rest], 1), score


def fitted(points, score, is_dense=True):
    size = points.shape[1]
    start = WhiteningNormal(np.zeros(size), np.eye(size))
    if not is_dense:  # where draws are far from white, many dimensions are not examined
        start = WhiteningNormal(points.mean(0), points.std(0))
    return whitening_of_draws(start, points, score)[0]


def log_scales(normal, values):
    """The log scale of the second coordinate where the first has given values."""
    sides = []
    for side in (-1.0, 1.0):
        white = np.zeros((len(values), len(normal.loc)))
        white[:, 0] = (values - normal.loc[0]) / as_matrix(normal.factor)[0, 0]
        white[:, 1] = side
        sides.append(normal.push(white)[:, 1])
    return np.log(0.5 * np.abs(sides[1] - sides[0]))


@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("num_children", [1, 9])
def test_the_slope_of_a_funnel(num_children, is_dense):
    points, score = funnel(np.random.default_rng(0), num_children)
    normal = fitted(points, score, is_dense)
    assert normal.parents == [0]
    values = np.linspace(-4.0, 4.0, 9)
    np.testing.assert_allclose(log_scales(normal, values), values, atol=0.25)
    white = normal.pull(points)
    # Four standard errors of a variance, and of a mean product of standard normals.
    np.testing.assert_allclose(white.var(0), 1.0, atol=4 * (2 / NUMBER) ** 0.5)
    products = np.mean(white[:, :1] * (white[:, 1:] ** 2 - 1.0), 0)
    np.testing.assert_allclose(products, 0.0, atol=4 * (2 / NUMBER) ** 0.5)


def test_draws_of_the_middle_show_the_slope_outside():
    points, score = funnel(np.random.default_rng(1), 9, 4 * NUMBER)
    middle = np.abs(points[:, 0]) < 1.0
    normal = fitted(points[middle], score[middle])
    assert normal.parents == [0]
    values = np.linspace(-3.0, 3.0, 7)
    np.testing.assert_allclose(log_scales(normal, values), values, atol=0.25)


@pytest.mark.parametrize("is_dense", [True, False])
def test_the_square_of_a_banana(is_dense):
    points, score = banana(np.random.default_rng(2))
    normal = fitted(points, score, is_dense)
    assert normal.parents == [0]
    values = np.linspace(-3.0, 3.0, 7)
    white = np.zeros((7, 2))
    white[:, 0] = (values - normal.loc[0]) / as_matrix(normal.factor)[0, 0]
    np.testing.assert_allclose(normal.push(white)[:, 1], values**2, atol=0.3)
    np.testing.assert_allclose(normal.pull(points).var(0), 1.0, atol=4 * (2 / NUMBER) ** 0.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correlated_normal_has_no_parents(seed):
    rng = np.random.default_rng(seed)
    size = 8
    root = np.eye(size) + 0.5 * rng.normal(size=(size, size))
    points = rng.normal(size=(NUMBER, size)) @ root.T
    normal = fitted(points, -points @ np.linalg.inv(root @ root.T))
    assert normal.parents == []
    assert normal.dependence is None
    covariance = root @ root.T
    sd = np.sqrt(np.diagonal(covariance))
    found = normal.factor @ normal.factor.T
    np.testing.assert_allclose(
        found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.01
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_draws_of_a_correlated_normal_show_no_parents(seed):
    """Apparent scales vary much, and 120 draws show large slopes by chance."""
    rng = np.random.default_rng(seed)
    root = np.eye(8) + 0.5 * rng.normal(size=(8, 8))
    points = rng.normal(size=(120, 8)) @ root.T
    assert fitted(points, -points @ np.linalg.inv(root @ root.T)).parents == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_parent_of_many_is_found_though_each_depends_little(seed):
    few, many = (funnel(np.random.default_rng(seed), k, sd=0.2) for k in (3, 80))
    assert fitted(*few).parents == []
    normal = fitted(*many)
    assert normal.parents == [0]
    # All children together show a slope that none of them would.
    slopes = normal.dependence.log_scale[1:, :1]
    np.testing.assert_allclose(np.abs(slopes).mean(), 0.2, atol=0.05)


def test_a_funnel_is_narrower_than_a_parent_of_many():
    rng = np.random.default_rng(0)
    normals = [fitted(*funnel(rng, number, sd=sd)) for number, sd in ((9, SD), (80, 0.2))]
    # The log scale changes by the slope times four standard deviations.
    ends = [np.full(len(normal.loc), 2.0) for normal in normals]
    changes = [
        normal.dependence.largest_change(-end, end)
        for normal, end in zip(normals, ends, strict=True)
    ]
    np.testing.assert_allclose(changes, [4 * SD, 4 * 0.2], rtol=0.3)


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_axis_of_a_parent_points_to_where_its_children_are_wide(side):
    """The features level off on the other side, where scales are small."""
    points, score = funnel(np.random.default_rng(6), 2)
    mirror = np.array([side, 1.0, 1.0])
    normal = fitted(points * mirror, score * mirror)
    assert np.sign(normal.factor[0, 0]) == side


def test_a_dependence_is_forgotten_where_there_is_none():
    bent = fitted(*funnel(np.random.default_rng(3), 1))
    points = np.random.default_rng(4).normal(size=(NUMBER, 2))
    normal, _ = whitening_of_draws(bent, points, -points)
    assert normal.parents == []
    np.testing.assert_allclose(normal.factor @ normal.factor.T, np.eye(2), atol=0.01)


def test_draws_that_are_not_finite_are_left_out():
    points, score = funnel(np.random.default_rng(5), 1)
    score[::7] = np.nan
    assert fitted(points, score).parents == [0]


def test_a_neck_that_few_draws_are_in_is_straightened():
    """A scale t / sqrt(1 + t^2): small in the long left tail of log t, constant elsewhere."""
    rng = np.random.default_rng(7)
    number, shape = 20_000, 2.0
    t = rng.gamma(shape, size=number)
    scale = t / np.sqrt(1.0 + t**2)
    standard = rng.normal(size=(number, 3))
    # d log scale / d log t = 1 / (1 + t^2)
    of_parent = shape - t + np.sum(standard**2 - 1.0, 1) / (1.0 + t**2)
    points = np.concatenate([np.log(t)[:, None], scale[:, None] * standard], 1)
    score = np.concatenate([of_parent[:, None], -standard / scale[:, None]], 1)
    white = fitted(points, score).pull(points)
    in_neck = t < np.quantile(t, 0.002)
    assert np.all(np.abs(np.log(white[in_neck, 1:].std(0))) < 0.5)


def test_many_dimensions_have_a_funnel_and_a_stretched_axis():
    rng = np.random.default_rng(0)
    num_children, stretch = 20, 5.0
    points, score = funnel(rng, num_children)
    # Both along the axis and across it, the children keep the parent's scale.
    axis = np.full(num_children, num_children**-0.5)
    points[:, 1:] += (stretch - 1) * np.outer(points[:, 1:] @ axis, axis)
    score[:, 1:] += (1 / stretch - 1) * np.outer(score[:, 1:] @ axis, axis)
    normal = fitted(points, score, is_dense=False)
    assert normal.parents == [0]
    white = normal.pull(points)
    np.testing.assert_allclose(normal.push(white), points, rtol=1e-6, atol=1e-6)
    # Four standard errors of a variance of standard normals.
    np.testing.assert_allclose((white[:, 1:] @ axis).var(), 1.0, atol=4 * (2 / NUMBER) ** 0.5)
