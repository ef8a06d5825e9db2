"""The normal fitted by natural gradients, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from closed_forms import normal_density
from test_starts import POINTS as EVALUATED
from test_starts import evaluator

from relbo.gaussian import (
    FitState,
    NormalFitter,
    WhiteEvaluation,
    WhiteningNormal,
    fit_step,
    normal_of_draws,
)

SIZE, POINTS = 6, 40


def settle(evaluate, start, num_steps, rng):
    fit = FitState(start, start)
    for _ in range(num_steps):
        fit = fit_step(rng, evaluate, POINTS, fit, 1.0)
    return fit


@pytest.mark.parametrize("orders", [0, 4])
def test_a_normal_is_found_exactly_whatever_its_scales(orders):
    rng = np.random.default_rng(0)
    scales = np.logspace(-orders, orders, SIZE)
    mean, covariance, evaluate = normal_density(rng, scales)
    start = WhiteningNormal(np.zeros(SIZE), np.diag(np.full(SIZE, 0.1)))
    fit = settle(evaluate, start, 60, rng)
    found = fit.before.factor @ fit.before.factor.T
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((fit.before.loc - mean) / sd, 0, atol=1e-3)
    # The ridge of the regression leaves a trace that shrinks with each step.
    np.testing.assert_allclose(
        found / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=1e-2
    )
    assert fit.shift < 0.1


def test_a_diagonal_normal_has_the_mean_and_the_conditional_precisions():
    rng = np.random.default_rng(1)
    mean, covariance, evaluate = normal_density(rng, np.ones(SIZE))
    start = WhiteningNormal(np.zeros(SIZE), np.full(SIZE, 0.1))
    fit = FitState(start, start)
    tail = []
    for turn in range(800):
        fit = fit_step(rng, evaluate, POINTS, fit, 0.2)
        if turn >= 400:
            tail.append((fit.before.loc, fit.before.factor**-2))
    # The mean-field optimum of the ELBO: the mean, and the diagonal of the precision.
    locs, precisions = map(np.array, zip(*tail, strict=True))
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((locs.mean(0) - mean) / sd, 0, atol=0.01)
    expected = np.diagonal(np.linalg.inv(covariance))
    np.testing.assert_allclose(precisions.mean(0), expected, rtol=0.1)


def test_the_fit_is_the_same_through_any_affine_map():
    _, _, evaluate = normal_density(np.random.default_rng(2), np.ones(SIZE))
    stretch = np.logspace(-3, 3, SIZE)

    def stretched(normal, white):
        inner = WhiteningNormal(normal.loc / stretch, normal.factor / stretch[:, None])
        return evaluate(inner, white)

    start = WhiteningNormal(np.zeros(SIZE), 0.1 * np.eye(SIZE))
    wide = WhiteningNormal(np.zeros(SIZE), 0.1 * np.diag(stretch))
    one = settle(evaluate, start, 10, np.random.default_rng(3)).normal
    other = settle(stretched, wide, 10, np.random.default_rng(3)).normal
    np.testing.assert_allclose(other.loc, stretch * one.loc, rtol=1e-6)
    np.testing.assert_allclose(
        other.factor, stretch[:, None] * one.factor, rtol=1e-5, atol=1e-8
    )


def test_a_step_off_the_support_is_taken_back():
    def half_line(normal, white):
        points = normal.push(white)
        inside = np.all(points > 0, 1)
        value = np.where(inside, -np.sum(points, 1), -np.inf)
        return WhiteEvaluation(white, value, -np.ones_like(points) @ normal.factor)

    start = WhiteningNormal(np.full(SIZE, 5.0), 0.1 * np.eye(SIZE))
    fit = FitState(start, start)
    rng = np.random.default_rng(4)
    for _ in range(50):
        fit = fit_step(rng, half_line, POINTS, fit, 1.0)
        assert np.isfinite(fit.elbo)
        assert np.all(fit.before.loc > 0)


def test_the_moments_of_draws():
    rng = np.random.default_rng(5)
    start = WhiteningNormal(np.ones(SIZE), np.diag(np.arange(1.0, SIZE + 1)))
    draws = rng.normal(size=(100_000, SIZE)) @ np.triu(np.ones((SIZE, SIZE))) + 2.0
    normal, shift = normal_of_draws(start, start.pull(draws))
    covariance = np.cov(draws.T)
    np.testing.assert_allclose(normal.loc, draws.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        normal.factor @ normal.factor.T, covariance, rtol=2e-3, atol=2e-3
    )
    assert shift > 0.5


def test_a_fit_that_goes_astray_begins_again_at_the_summit():
    """Two normals far apart, and a start from which the scale of one of them is lost."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2.75, 1.0, 370), rng.normal(2.85, 0.5, 630)])

    def logdensity(z):
        locs = jnp.stack([z[0], z[0] + jnp.exp(z[1])])
        log_weights = jnp.stack([jax.nn.log_sigmoid(z[4]), jax.nn.log_sigmoid(-z[4])])
        residuals = (y[:, None] - locs[None]) / jnp.exp(z[None, 2:4])
        parts = (log_weights - z[2:4])[None] - 0.5 * residuals**2
        prior = -0.5 * jnp.sum(z**2) / 4.0
        return prior + jnp.sum(jax.nn.logsumexp(parts, axis=1))

    fitter = NormalFitter(rng, evaluator(logdensity, 5), 5, 2 * EVALUATED, EVALUATED)
    found = fitter.fit(np.array([-1.82, 1.65, -1.86, -0.37, 1.34]))
    assert found.converged
    np.testing.assert_allclose(found.modes[0].loc[0], -2.75, atol=0.2)
