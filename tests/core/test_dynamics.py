"""The leapfrog: the same in NumPy and JAX, reversible, and of second order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.core import dynamics


def oscillator(position, momentum, step_size, num_steps):
    score = -position
    for _ in range(num_steps):
        position, momentum, score = relbo.leapfrog(
            position, momentum, score, step_size, lambda z: -z
        )
    return position, momentum


def test_numpy_and_jax_take_the_same_step(x64):
    rng = np.random.default_rng(0)
    position, momentum = rng.normal(size=(2, 3, 4))
    found = oscillator(position, momentum, 0.1, 3)
    compiled = jax.jit(lambda z, rho: oscillator(z, rho, 0.1, 3))(position, momentum)
    for ours, theirs in zip(found, compiled, strict=True):
        assert isinstance(ours, np.ndarray)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_leapfrogs_are_reversible():
    position, momentum = np.array([0.3, -1.2]), np.array([0.5, 0.1])
    moved, flipped = oscillator(position, momentum, 0.3, 5)
    back, again = oscillator(moved, -flipped, 0.3, 5)
    np.testing.assert_allclose(back, position, atol=1e-12)
    np.testing.assert_allclose(-again, momentum, atol=1e-12)


def test_the_error_of_a_trajectory_is_of_second_order():
    exact = np.cos(1.0)
    errors = [
        abs(oscillator(np.array([1.0]), np.array([0.0]), 1.0 / n, n)[0][0] - exact)
        for n in (10, 20)
    ]
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)


def test_a_refreshed_momentum_stays_standard_normal():
    rng = np.random.default_rng(0)
    momentum = dynamics.refresh(rng.normal(size=100_000), rng.normal(size=100_000), 0.9)
    assert momentum.std() == pytest.approx(1.0, abs=4 / np.sqrt(2 * 100_000))


def test_the_log_weight_increment_is_a_ratio_of_momentum_densities():
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 5, 3))
    logpdf = lambda x: jax.scipy.stats.norm.logpdf(x).sum(-1)
    increment = dynamics.log_weight_increment(before, after)
    np.testing.assert_allclose(increment, logpdf(after) - logpdf(before), rtol=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(0.0, -1.0, 1.0), (0.0, 1.0, np.exp(-1.0)), (0.0, np.nan, 0.0), (np.inf, np.inf, 0.0)],
)
def test_nan_energies_are_rejected(before, after, expected):
    found = dynamics.acceptance_probability(jnp.asarray(before), jnp.asarray(after))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
