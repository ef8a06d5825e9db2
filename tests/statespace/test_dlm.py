"""Blocks against closed forms and statsmodels, and how `dlm` combines them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import pytest
from statsmodels.tsa.statespace.structural import UnobservedComponents

from relbo.statespace import (
    LinearGaussianSeries,
    dlm,
    local_level,
    local_linear_trend,
    regression,
    seasonal,
)

SERIES = np.random.default_rng(0).normal(size=30).cumsum()


def test_trend_and_constant_seasons_agree_with_statsmodels(x64):
    """With constant seasons the two parametrisations are the same model."""
    ours = dlm(
        local_linear_trend(0.4, 0.1, initial_scale=(3.0, 1.0)),
        seasonal(4, 0.0, initial_scale=2.0),
        observation_scale=0.5,
    )
    theirs = UnobservedComponents(SERIES, "lltrend", seasonal=4, stochastic_seasonal=False)
    # Its state holds the current season and the two before it; ours holds the coming ones.
    past = np.zeros((3, 4))
    past[0, 0] = past[1, 3] = past[2, 2] = 1.0
    start = np.zeros((5, 5))
    start[:2, :2] = np.diag([9.0, 1.0])
    start[2:, 2:] = past @ np.asarray(ours.initial_covariance)[2:, 2:] @ past.T
    theirs.ssm.initialize_known(np.zeros(5), start)
    theirs.loglikelihood_burn = 0
    expected = theirs.loglike([0.25, 0.16, 0.01])
    assert float(ours.log_likelihood(SERIES)) == pytest.approx(expected, rel=1e-6)


def test_a_local_level_is_a_random_walk(x64):
    model = dlm(local_level(0.3, initial_mean=2.0, initial_scale=1.5), observation_scale=0.5)
    ahead = model.forecast(np.array([np.nan]), 3)
    np.testing.assert_allclose(ahead.loc, 2.0)
    steps = np.arange(1, 4)
    np.testing.assert_allclose(ahead.scale**2, 1.5**2 + 0.3**2 * steps + 0.25, rtol=1e-9)


def test_a_damped_slope_decays(x64):
    trend = local_linear_trend(
        0.0, 0.0, damping=0.5, initial_mean=(1.0, 4.0), initial_scale=0.0
    )
    ahead = dlm(trend, observation_scale=0.1).forecast(np.array([np.nan]), 4)
    np.testing.assert_allclose(ahead.loc, [5.0, 7.0, 8.0, 8.5])


def test_seasons_cycle_and_add_up_to_zero():
    model = dlm(seasonal(4, 0.2), observation_scale=1.0)
    states = np.asarray(model.simulate(jr.key(0), 9).states)
    np.testing.assert_allclose(states.sum(axis=1), 0.0, atol=1e-4)
    still = dlm(seasonal(4, 0.0), observation_scale=1.0)
    states = np.asarray(still.simulate(jr.key(0), 9).states)
    np.testing.assert_allclose(states[1], np.roll(states[0], -1), atol=1e-4)
    np.testing.assert_allclose(states[4:8, 0], states[:4, 0], atol=1e-4)
    assert np.std(states[:4, 0]) > 0.1


def test_only_the_season_that_ended_changes_relative_to_the_others():
    block = seasonal(4, 2.0)
    noise = np.array([-0.25, -0.25, -0.25, 0.75]) * 2.0
    np.testing.assert_allclose(block.transition_covariance, np.outer(noise, noise), rtol=1e-6)


def test_a_regression_is_bayesian_linear_regression(x64):
    rng = np.random.default_rng(1)
    covariates = rng.normal(size=(33, 2))
    observed = covariates[:30] @ [1.0, -2.0] + 0.3 * rng.normal(size=30)
    block = regression(covariates, initial_scale=5.0)
    model = dlm(block, observation_scale=0.3)
    precision = covariates[:30].T @ covariates[:30] / 0.09 + np.eye(2) / 25.0
    mean = np.linalg.solve(precision, covariates[:30].T @ observed / 0.09)
    np.testing.assert_allclose(model.filter(observed).mean[-1], mean, rtol=1e-6)
    ahead = model.forecast(observed, 3)
    np.testing.assert_allclose(ahead.loc, covariates[30:] @ mean, rtol=1e-6)
    spread = np.diag(covariates[30:] @ np.linalg.solve(precision, covariates[30:].T)) + 0.09
    np.testing.assert_allclose(ahead.scale**2, spread, rtol=1e-6)


def test_states_of_blocks_are_concatenated():
    model = dlm(
        local_level(0.1), regression(np.ones((5, 2))), seasonal(3, 0.1), observation_scale=1.0
    )
    assert model.num_states == 6
    assert model.observation.shape == (5, 1, 6)
    np.testing.assert_array_equal(model.observation[2, 0], [1, 1, 1, 1, 0, 0])


def test_the_gradient_of_every_scale_is_finite_and_not_zero():
    def loss(scales):
        trend = local_linear_trend(scales[0], scales[1], damping=scales[2])
        model = dlm(trend, seasonal(4, scales[3]), observation_scale=scales[4])
        return model.log_likelihood(SERIES)

    gradient = jax.jit(jax.grad(loss))
    usual = gradient(jnp.array([0.4, 0.1, 0.9, 0.2, 0.5]))
    assert jnp.all(jnp.isfinite(usual))
    assert jnp.all(usual != 0)
    assert jnp.all(jnp.isfinite(gradient(jnp.array([0.4, 0.0, 1.0, 0.0, 0.5]))))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: local_level(-0.1), "scale: expected standard deviations of zero or more"),
        (lambda: local_linear_trend(0.1, -0.1), "slope_scale"),
        (lambda: seasonal(1, 0.1), "period"),
        (lambda: seasonal(12, -1.0), "scale"),
        (lambda: regression(np.ones(3)), r"covariates: expected the shape \[t, k\]"),
        (lambda: regression(np.full((3, 1), np.nan)), "covariates: expected finite"),
        (lambda: dlm(local_level(0.1), observation_scale=-1.0), "observation_scale"),
        (lambda: dlm(observation_scale=1.0), "blocks"),
        (lambda: local_linear_trend(0.1, 0.1, initial_scale=(1.0, 1.0, 1.0)), "initial_scale"),
        (
            lambda: dlm(
                regression(np.ones((3, 1))), regression(np.ones((4, 1))), observation_scale=1.0
            ),
            "expected one length",
        ),
    ],
)
def test_invalid_blocks_raise_an_error_with_the_argument(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_negative_scale_in_a_compiled_function_gives_nan():
    loss = jax.jit(
        lambda scale: dlm(local_level(scale), observation_scale=1.0).log_likelihood(SERIES)
    )
    assert jnp.isfinite(loss(0.1))
    assert jnp.isnan(loss(-0.1))


def test_a_numpyro_model_with_a_linear_gaussian_series():
    def program(series=None):
        scale = numpyro.sample("scale", numpyro.distributions.HalfNormal(1.0))
        model = dlm(local_level(scale), observation_scale=0.5)
        numpyro.sample("series", LinearGaussianSeries(model, 30), obs=series)

    gappy = np.where(np.arange(30) % 7 == 0, np.nan, SERIES)
    values = {"scale": jnp.array(0.4)}
    found, _ = numpyro.infer.util.log_density(program, (gappy,), {}, values)
    model = dlm(local_level(0.4), observation_scale=0.5)
    prior = numpyro.distributions.HalfNormal(1.0).log_prob(0.4)
    assert float(found) == pytest.approx(float(model.log_likelihood(gappy) + prior), rel=1e-5)
    draws = numpyro.infer.Predictive(program, num_samples=2)(jr.key(0))
    assert draws["series"].shape == (2, 30)
    assert jnp.all(jnp.isfinite(draws["series"]))


def test_the_distribution_accepts_batches():
    model = dlm(local_level(0.4), observation_scale=0.5)
    batch = np.stack([SERIES, -SERIES])
    expected = [model.log_likelihood(one) for one in batch]
    np.testing.assert_allclose(LinearGaussianSeries(model, 30).log_prob(batch), expected)
