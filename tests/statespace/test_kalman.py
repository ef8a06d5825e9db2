"""The Kalman filter against statsmodels, against the joint normal, and in float32."""

from functools import cache

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from relbo.statespace import LinearGaussian, dlm, local_linear_trend, seasonal

NUM_STEPS, NUM_STATES, NUM_OBSERVED = 40, 4, 2


def random_covariance(rng, size, rank=None):
    root = rng.normal(size=(size, size if rank is None else rank))
    return root @ root.T / size


def random_parts(seed):
    """Stable random matrices; all but the first state change with time on odd seeds."""
    rng = np.random.default_rng(seed)
    num_times = NUM_STEPS if seed % 2 else 1
    transition = rng.normal(size=(num_times, NUM_STATES, NUM_STATES))
    transition /= 1.1 * np.linalg.norm(transition, ord=2, axis=(1, 2), keepdims=True)
    # Of full rank, or singular.
    rank = NUM_STATES if seed % 3 else 2
    noise = [random_covariance(rng, NUM_STATES, rank) for _ in range(num_times)]
    parts = {
        "transition": transition,
        "transition_covariance": np.stack(noise),
        "observation": rng.normal(size=(num_times, NUM_OBSERVED, NUM_STATES)),
        "observation_variance": rng.uniform(0.05, 1.0, size=(num_times, NUM_OBSERVED)),
        "transition_offset": rng.normal(size=(num_times, NUM_STATES)),
        "observation_offset": rng.normal(size=(num_times, NUM_OBSERVED)),
    }
    if num_times == 1:
        parts = {name: value[0] for name, value in parts.items()}
    return {
        "initial_mean": rng.normal(size=NUM_STATES),
        "initial_covariance": random_covariance(rng, NUM_STATES),
        **parts,
    }


def random_series(seed):
    """Single missing entries, missing steps and a long gap."""
    rng = np.random.default_rng(100 + seed)
    series = rng.normal(size=(NUM_STEPS, NUM_OBSERVED)) * 2
    series[rng.random(series.shape) < 0.2] = np.nan
    series[10:17] = np.nan
    return series


def statsmodels_results(parts, series):
    smoother = KalmanSmoother(k_endog=NUM_OBSERVED, k_states=NUM_STATES, k_posdef=NUM_STATES)
    smoother.bind(series.copy())
    in_time = lambda value, ndim: np.moveaxis(value, 0, -1) if value.ndim > ndim else value
    variance = parts["observation_variance"]
    diagonal = np.stack([np.diag(v) for v in np.atleast_2d(variance)])
    smoother["transition"] = in_time(parts["transition"], 2)
    smoother["state_cov"] = in_time(parts["transition_covariance"], 2)
    smoother["selection"] = np.eye(NUM_STATES)
    smoother["design"] = in_time(parts["observation"], 2)
    smoother["obs_cov"] = in_time(diagonal if variance.ndim > 1 else diagonal[0], 2)
    smoother["state_intercept"] = in_time(np.atleast_2d(parts["transition_offset"]), 1)
    smoother["obs_intercept"] = in_time(np.atleast_2d(parts["observation_offset"]), 1)
    smoother.initialize_known(parts["initial_mean"], parts["initial_covariance"])
    return smoother.smooth()


def close(ours, theirs):
    scale = np.max(np.abs(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7 * scale)


@jax.jit
def everything(parts, series):
    model = LinearGaussian(**parts)
    return model.log_likelihood(series), model.filter(series), model.smooth(series)


@pytest.mark.parametrize("seed", range(6))
def test_likelihood_filter_and_smoother_agree_with_statsmodels(x64, seed):
    parts, series = random_parts(seed), random_series(seed)
    log_likelihood, filtered, smoothed = everything(parts, series)
    theirs = statsmodels_results(parts, series)
    close(log_likelihood, theirs.llf)
    close(filtered.log_likelihoods, theirs.llf_obs)
    close(filtered.predicted_mean, theirs.predicted_state.T[:-1])
    close(filtered.mean, theirs.filtered_state.T)
    close(filtered.covariance, np.moveaxis(theirs.filtered_state_cov, -1, 0))
    close(smoothed.mean, theirs.smoothed_state.T)
    close(smoothed.covariance, np.moveaxis(theirs.smoothed_state_cov, -1, 0))


def joint_normal(parts, num_steps):
    """Mean and covariance of all observations jointly, from independent noise."""
    one = lambda name, t, ndim: parts[name][t] if parts[name].ndim > ndim else parts[name]
    mean = parts["initial_mean"]
    root = np.linalg.cholesky(parts["initial_covariance"])
    means, loadings, variances = [], [], []
    for t in range(num_steps):
        observation = one("observation", t, 2)
        means.append(observation @ mean + one("observation_offset", t, 1))
        loadings.append(observation @ root)
        variances.append(one("observation_variance", t, 1))
        transition = one("transition", t, 2)
        mean = transition @ mean + one("transition_offset", t, 1)
        values, vectors = np.linalg.eigh(one("transition_covariance", t, 2))
        noise = vectors * np.sqrt(np.maximum(values, 0))
        root = np.concatenate([transition @ root, noise], axis=1)
    width = max(loading.shape[1] for loading in loadings)
    padded = [np.pad(load, ((0, 0), (0, width - load.shape[1]))) for load in loadings]
    stacked = np.concatenate(padded)
    return np.concatenate(means), stacked @ stacked.T + np.diag(np.concatenate(variances))


@pytest.mark.parametrize("seed", [0, 1])
def test_forecast_is_the_conditional_of_the_joint_normal(x64, seed):
    num_ahead = 6
    parts, series = random_parts(seed), random_series(seed)[:-num_ahead]
    mean, covariance = joint_normal(parts, NUM_STEPS)
    seen = np.concatenate([~np.isnan(series).ravel(), np.zeros(num_ahead * 2, bool)])
    ahead = np.arange(len(mean)) >= series.size
    gain = covariance[np.ix_(ahead, seen)] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
    surprise = series.ravel()[seen[: series.size]] - mean[seen]
    expected = mean[ahead] + gain @ surprise
    variance = covariance[np.ix_(ahead, ahead)] - gain @ covariance[np.ix_(seen, ahead)]
    model = LinearGaussian(**parts)
    forecast, log_likelihood = jax.jit(
        lambda series: (model.forecast(series, num_ahead), model.log_likelihood(series))
    )(series)
    assert forecast.shape == (num_ahead, 2)
    np.testing.assert_allclose(forecast.loc.ravel(), expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(forecast.scale.ravel() ** 2, np.diag(variance), rtol=1e-8)
    log_density = stats.multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).logpdf
    assert float(log_likelihood) == pytest.approx(log_density(surprise + mean[seen]))


def test_a_mask_is_equivalent_to_nan(x64):
    parts, series = random_parts(0), random_series(0)
    model, mask = LinearGaussian(**parts), ~np.isnan(series)
    filled = np.where(mask, series, 1e6)
    assert model.log_likelihood(series) == model.log_likelihood(filled, mask)
    whole_steps = np.arange(NUM_STEPS) % 3 > 0
    holes = np.where(whole_steps[:, None], series, np.nan)
    assert model.log_likelihood(series, whole_steps) == model.log_likelihood(holes)


def test_gradients_match_finite_differences_with_missing_data(x64):
    parts, series = random_parts(1), random_series(1)
    value_and_grad = jax.jit(
        jax.value_and_grad(lambda parts: LinearGaussian(**parts).log_likelihood(series))
    )
    log_likelihood = lambda parts: value_and_grad(parts)[0]
    gradient = value_and_grad(parts)[1]
    rng = np.random.default_rng(0)
    for name, value in parts.items():
        direction = rng.normal(size=value.shape)
        if "covariance" in name:
            direction = direction @ direction.swapaxes(-1, -2)
        step = 1e-6
        up, down = ({**parts, name: value + sign * step * direction} for sign in (1, -1))
        expected = (log_likelihood(up) - log_likelihood(down)) / (2 * step)
        assert float(np.sum(gradient[name] * direction)) == pytest.approx(
            float(expected), rel=1e-5, abs=1e-5
        ), name


def test_the_gradient_of_the_smoother_is_finite_with_a_singular_covariance(x64):
    series = random_series(0)[:, 0]

    def smoothed(scale):
        model = dlm(local_linear_trend(scale, 0.1), seasonal(3, 0.0), observation_scale=0.5)
        return jnp.sum(model.smooth(series).mean ** 2)

    step = 1e-5
    scales = 0.3 + step * jnp.array([-1.0, 0.0, 1.0])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(smoothed)))(scales)
    expected = (values[2] - values[0]) / (2 * step)
    assert float(slopes[1]) == pytest.approx(float(expected), rel=1e-4)


def structural(initial_scale):
    return dlm(
        local_linear_trend(0.1, 0.001, initial_scale=initial_scale),
        seasonal(12, 0.01, initial_scale=initial_scale),
        observation_scale=0.05,
    )


@jax.jit
def structural_results(initial_scale, series):
    model = structural(initial_scale)
    return model.log_likelihood(series), model.filter(series), model.smooth(series)


@cache
def structural_series():
    """A simulated series with a gap; the covariances of its seasons are singular."""
    simulated = jax.jit(lambda key: structural(10.0).simulate(key, 120).series[:, 0])
    series = np.array(simulated(jr.key(0)))
    assert np.all(np.isfinite(series))
    series[50:80] = np.nan
    return series


@pytest.mark.parametrize("initial_scale", [10.0, 1e3])
def test_float32_is_accurate_with_an_uncertain_first_state(initial_scale):
    """Its standard deviation is up to 20,000 times that of the noise."""
    series = structural_series()
    log_likelihood, ours, smoothed = structural_results(initial_scale, series)
    with jax.enable_x64(True):
        total, exact, exact_smoothed = jax.tree.map(
            np.asarray, structural_results(initial_scale, series.astype(np.float64))
        )
    assert float(log_likelihood) == pytest.approx(total, abs=0.02)
    assert float(ours.log_likelihood) == pytest.approx(total, abs=0.02)
    for found, right in ((ours, exact), (smoothed, exact_smoothed)):
        spread = np.sqrt(right.covariance[:, 0, 0])
        assert np.max(np.abs(found.mean[:, 0] - right.mean[:, 0]) / spread) < 0.02
        np.testing.assert_allclose(np.sqrt(found.covariance[:, 0, 0]), spread, rtol=0.01)
        lowest = np.linalg.eigvalsh(np.asarray(found.covariance, np.float64))[:, 0]
        assert np.all(lowest > -1e-4 * np.max(right.covariance, axis=(1, 2)))


def test_without_noise_the_level_equals_the_observations(x64):
    model = dlm(local_linear_trend(0.3, 0.1), observation_scale=0.0)
    series = np.cumsum(np.random.default_rng(0).normal(size=20))
    results = jax.jit(lambda x: (model.filter(x).mean, model.smooth(x).mean))(series)
    for mean in results:
        np.testing.assert_allclose(mean[:, 0], series, rtol=1e-6, atol=1e-6)


def test_float32_gradients_are_finite_at_extreme_scales():
    def value(log_scales):
        scales = jnp.exp(log_scales)
        trend = local_linear_trend(scales[0], scales[1], initial_scale=10.0)
        model = dlm(trend, seasonal(12, scales[2]), observation_scale=scales[3])
        return model.log_likelihood(structural_series())

    points = jnp.log(0.1) + jnp.concatenate([-15.0 * jnp.eye(4), 8.0 * jnp.eye(4)])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(value)))(points)
    assert jnp.all(jnp.isfinite(values))
    assert jnp.all(jnp.isfinite(slopes))


@pytest.mark.slow
def test_the_gradient_of_ten_thousand_steps_uses_little_memory():
    def loss(scale, series):
        model = dlm(local_linear_trend(scale, 0.01), seasonal(12, 0.0), observation_scale=1.0)
        return model.log_likelihood(series)

    need = {}
    for length in (1_000, 10_000):
        series = jnp.zeros(length)
        compiled = jax.jit(jax.grad(loss)).lower(0.1, series).compile()
        need[length] = compiled.memory_analysis().temp_size_in_bytes
        assert np.isfinite(compiled(0.1, series))
    assert need[10_000] < 20e6
    assert need[10_000] < need[1_000] * 11


def test_vmap_gives_batches_of_series_and_models(x64):
    parts = random_parts(0)
    series = np.stack([random_series(seed) for seed in range(3)])
    variances = jnp.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    build = lambda variance: LinearGaussian(**{**parts, "observation_variance": variance})
    value = lambda variance, one: build(variance).log_likelihood(one)
    together = jax.jit(jax.vmap(jax.vmap(value, in_axes=(None, 0)), in_axes=(0, None)))
    one_by_one = [[build(v).log_likelihood(one) for one in series] for v in variances]
    np.testing.assert_allclose(together(variances, series), one_by_one)


def test_simulated_series_have_the_moments_of_the_model(x64):
    parts = random_parts(2)
    model = LinearGaussian(**parts)
    simulate = jax.jit(jax.vmap(lambda key: model.simulate(key, 5).series))
    draws = simulate(jr.split(jr.key(0), 20_000))
    mean, covariance = joint_normal(parts, 5)
    flat = np.asarray(draws.reshape(len(draws), -1))
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((flat.mean(axis=0) - mean) / spread, 0.0, atol=0.04)
    correlation = (np.cov(flat.T) - covariance) / np.outer(spread, spread)
    np.testing.assert_allclose(correlation, 0.0, atol=0.05)


def one_state(**changes):
    one = np.ones((1, 1))
    parts = {
        "initial_mean": np.zeros(1),
        "initial_covariance": one,
        "transition": one,
        "transition_covariance": one,
        "observation": one,
        "observation_variance": np.ones(1),
    }
    return LinearGaussian(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation_variance": -np.ones(1)}, "observation_variance: expected variances"),
        ({"transition_covariance": -np.ones((1, 1))}, "transition_covariance: expected"),
        ({"initial_covariance": -np.ones((1, 1))}, "initial_covariance: expected variances"),
        ({"initial_mean": np.zeros(2)}, r"initial_covariance: expected the shape \[2, 2\]"),
        ({"initial_mean": np.zeros((1, 1))}, r"initial_mean: expected the shape \[n\]"),
        ({"observation": np.ones(1)}, r"observation: expected the shape \[m, n\]"),
        ({"transition": np.ones((5, 2, 1))}, r"transition: .* or \[t, 1, 1\]"),
        ({"observation_offset": np.zeros(2)}, "observation_offset"),
    ],
)
def test_invalid_parts_raise_an_error_with_their_name(changes, message):
    with pytest.raises(ValueError, match=message):
        one_state(**changes)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.zeros(0), "at least one step"),
        (np.float32(1.0), "at least one step"),
        (np.zeros((3, 2)), r"\[t, 1\] or \[t\]"),
    ],
)
def test_invalid_series_raise_an_error(series, message):
    with pytest.raises(ValueError, match=message):
        one_state().log_likelihood(series)


@pytest.mark.parametrize(
    ("mask", "message"),
    [(np.ones(3), "expected True where observed"), (np.ones(4, bool), "expected the shape")],
)
def test_invalid_masks_raise_an_error(mask, message):
    with pytest.raises(ValueError, match=message):
        one_state().log_likelihood(np.zeros(3), mask)


def test_changing_parts_must_cover_the_steps_of_a_forecast():
    model = one_state(observation=np.ones((5, 1, 1)))
    model.forecast(np.zeros(3), 2)
    with pytest.raises(ValueError, match="observation: it changes with time and has 5 steps"):
        model.forecast(np.zeros(4), 2)
    with pytest.raises(ValueError, match="num_steps"):
        model.forecast(np.zeros(3), 0)


def test_a_negative_variance_in_a_compiled_function_gives_nan():
    log_likelihood = jax.jit(
        lambda variance: one_state(observation_variance=variance).log_likelihood(np.zeros(3))
    )
    assert jnp.isfinite(log_likelihood(np.full(1, 0.5)))
    assert jnp.isnan(log_likelihood(np.full(1, -0.5)))


def test_an_unobserved_series_has_likelihood_one_and_the_prior_moments():
    model = one_state()
    series = np.full(4, np.nan)
    assert model.log_likelihood(series) == 0.0
    np.testing.assert_allclose(model.filter(series).covariance[:, 0, 0], [1, 2, 3, 4])
    np.testing.assert_allclose(model.smooth(series).covariance[:, 0, 0], [1, 2, 3, 4])
