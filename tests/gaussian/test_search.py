"""Mass that a fitted normal does not explain: found where it is, and only there."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_starts import ONE_BASIN, POINTS, evaluator

from relbo.gaussian import NormalFitter, WhiteningNormal, nearest_mode
from relbo.gaussian.search import local_normal, unexplained_parts


def mixture(distance, scale):
    """Half of the mass in a standard normal, and half in another one."""

    def logdensity(z):
        size = len(z)
        offset = jnp.zeros(size).at[0].set(distance)
        part = -0.5 * jnp.sum((z - offset) ** 2) / scale**2 - size * jnp.log(scale)
        return jnp.logaddexp(-0.5 * jnp.sum(z**2), part)

    return logdensity


def parts_of(logdensity, normal, summit):
    size = len(summit)
    evaluate = evaluator(logdensity, size)
    # Each half has a log evidence of zero, without the factor of 2 pi.
    rng = np.random.default_rng(0)
    return unexplained_parts(rng, evaluate, POINTS, normal, 0.0, summit, [summit])


@pytest.mark.parametrize("size", [1, 3])
def test_a_spike_is_seen_from_the_wide_part(size):
    wide = WhiteningNormal(np.zeros(size), np.eye(size))
    (spike,) = parts_of(mixture(0.0, 0.02), wide, np.zeros(size))
    # Good enough for a fit to start from.
    assert np.all((np.diagonal(spike.factor) > 0.01) & (np.diagonal(spike.factor) < 0.05))


@pytest.mark.parametrize("size", [1, 3])
def test_the_wide_part_is_seen_from_a_spike(size):
    narrow = WhiteningNormal(np.zeros(size), 0.02 * np.eye(size))
    (wide,) = parts_of(mixture(0.0, 0.02), narrow, np.zeros(size))
    assert np.all(np.diagonal(wide.factor) > 0.2)


@pytest.mark.parametrize(("size", "distance", "scale"), [(3, 3.2, 0.1), (30, -8.0, 0.5)])
def test_a_mode_beyond_a_valley_is_seen(size, distance, scale):
    wide = WhiteningNormal(np.zeros(size), np.eye(size))
    (beyond,) = parts_of(mixture(distance, scale), wide, np.zeros(size))
    np.testing.assert_allclose(beyond.loc, [distance, *np.zeros(size - 1)], atol=0.05)


@pytest.mark.parametrize("name", ONE_BASIN)
def test_one_basin_has_no_other_parts_that_are_kept(name):
    logdensity, size = ONE_BASIN[name]
    fitter = NormalFitter(
        np.random.default_rng(3), evaluator(logdensity, size), size, POINTS, POINTS
    )
    assert len(fitter.fit().modes) == 1


def test_a_spike_in_a_slab_is_two_modes():
    evaluate = evaluator(mixture(0.0, 0.02), 2)
    fitter = NormalFitter(np.random.default_rng(0), evaluate, 2, POINTS, POINTS)
    scales = sorted(np.exp(mode.log_det / 2) for mode in fitter.fit().modes)
    np.testing.assert_allclose(scales, [0.02, 1.0], rtol=0.3)


def test_a_local_normal_is_as_narrow_as_the_density():
    scales = jnp.array([1e-3, 1e-2, 1.0])
    evaluate = evaluator(lambda z: -0.5 * jnp.sum((z / scales) ** 2), 3)
    local = local_normal(evaluate, POINTS, np.zeros(3))
    np.testing.assert_allclose(np.diagonal(local.factor), [1e-3, 1e-2, 0.1], rtol=0.5)


def test_a_narrow_mode_has_little_of_a_wide_one_around_it():
    narrow, wide = (WhiteningNormal(np.zeros(2), scale * np.eye(2)) for scale in (0.05, 1.0))
    points = np.array([[0.05, 0.0], [0.1, 0.1], [0.3, 0.0], [1.0, -1.0]])
    np.testing.assert_array_equal(nearest_mode(points, [narrow, wide]), [0, 0, 1, 1])
