"""The Kalman filter against statsmodels, against one joint normal, and in float32."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from relbo.models import LinearGaussian, dlm, local_linear_trend, seasonal

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
    # Of full rank, or with states that are known once others are.
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
    """Holes here and there, steps without anything, and a long gap."""
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


@pytest.mark.parametrize("seed", range(10))
def test_it_agrees_with_statsmodels(x64, seed):
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
    """Mean and covariance of all observations together, by writing the noise out."""
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
    forecast = LinearGaussian(**parts).forecast(series, num_ahead)
    assert forecast.shape == (num_ahead, 2)
    np.testing.assert_allclose(forecast.loc.ravel(), expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(forecast.scale.ravel() ** 2, np.diag(variance), rtol=1e-8)
    log_density = stats.multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).logpdf
    log_likelihood = LinearGaussian(**parts).log_likelihood(series)
    assert float(log_likelihood) == pytest.approx(log_density(surprise + mean[seen]))


def test_nan_and_mask_say_the_same(x64):
    parts, series = random_parts(0), random_series(0)
    model, mask = LinearGaussian(**parts), ~np.isnan(series)
    filled = np.where(mask, series, 1e6)
    assert model.log_likelihood(series) == model.log_likelihood(filled, mask)
    whole_steps = np.arange(NUM_STEPS) % 3 > 0
    holes = np.where(whole_steps[:, None], series, np.nan)
    assert model.log_likelihood(series, whole_steps) == model.log_likelihood(holes)


def test_gradients_match_finite_differences_with_missing_data(x64):
    parts, series = random_parts(1), random_series(1)
    log_likelihood = jax.jit(lambda parts: LinearGaussian(**parts).log_likelihood(series))
    gradient = jax.grad(log_likelihood)(parts)
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
    expected = (smoothed(0.3 + step) - smoothed(0.3 - step)) / (2 * step)
    assert float(jax.grad(smoothed)(0.3)) == pytest.approx(float(expected), rel=1e-4)


def structural(dtype, initial_scale=1e3):
    with jax.enable_x64(dtype == np.float64):
        return dlm(
            local_linear_trend(0.1, 0.001, initial_scale=initial_scale),
            seasonal(12, 0.01, initial_scale=initial_scale),
            observation_scale=0.05,
        )


def gappy_series():
    series = np.array(structural(np.float32, 10.0).simulate(jr.key(0), 120).series[:, 0])
    series[50:80] = np.nan
    return series


@pytest.mark.parametrize("initial_scale", [10.0, 1e3])
def test_float32_keeps_its_digits_from_a_wide_start(initial_scale):
    """Up to 20,000 times as wide as the noise: a plain covariance would need 4e8."""
    series = gappy_series()
    model = structural(np.float32, initial_scale)
    ours, smoothed = model.filter(series), model.smooth(series)
    log_likelihood = model.log_likelihood(series)
    with jax.enable_x64(True):
        model = structural(np.float64, initial_scale)
        exact = jax.tree.map(np.asarray, model.filter(series.astype(np.float64)))
        exact_smoothed = jax.tree.map(np.asarray, model.smooth(series.astype(np.float64)))
    total = exact.log_likelihoods.sum()
    assert float(log_likelihood) == pytest.approx(total, abs=0.02)
    assert float(ours.log_likelihood) == pytest.approx(total, abs=0.02)
    for found, right in ((ours, exact), (smoothed, exact_smoothed)):
        spread = np.sqrt(right.covariance[:, 0, 0])
        assert np.max(np.abs(found.mean[:, 0] - right.mean[:, 0]) / spread) < 0.02
        np.testing.assert_allclose(np.sqrt(found.covariance[:, 0, 0]), spread, rtol=0.01)
        lowest = np.linalg.eigvalsh(np.asarray(found.covariance, np.float64))[:, 0]
        assert np.all(lowest > -1e-4 * np.max(right.covariance, axis=(1, 2)))


def test_a_path_of_singular_blocks_is_finite():
    """Rounding makes some of the zero eigenvalues of the seasons negative."""
    assert np.all(np.isfinite(structural(np.float32).simulate(jr.key(0), 120).series))


def test_without_noise_the_observations_are_met(x64):
    model = dlm(local_linear_trend(0.3, 0.1), observation_scale=0.0)
    series = np.cumsum(np.random.default_rng(0).normal(size=20))
    np.testing.assert_allclose(model.filter(series).mean[:, 0], series, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.smooth(series).mean[:, 0], series, rtol=1e-6, atol=1e-6)


def test_a_long_series_is_the_sum_of_its_stretches(x64):
    """Beyond the length where everything is kept, nothing changes but the memory."""
    model = structural(np.float64, 1.0)
    series = model.simulate(jr.key(1), 2_100).series
    filtered = model.filter(series)
    assert filtered.mean.shape == (2_100, 14)
    # In float32 either is off by what rounding takes of 2,100 steps, on each machine anew.
    assert float(model.log_likelihood(series)) == pytest.approx(
        float(jnp.sum(filtered.log_likelihoods)), rel=1e-10
    )
    head = model.filter(series[:2_000])
    np.testing.assert_allclose(filtered.mean[:2_000], head.mean, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_the_gradient_of_ten_thousand_steps_needs_little_memory():
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


def test_batches_of_series_and_of_models_by_vmap(x64):
    parts = random_parts(0)
    series = np.stack([random_series(seed) for seed in range(3)])
    model = LinearGaussian(**parts)
    together = jax.vmap(model.log_likelihood)(series)
    one_by_one = [model.log_likelihood(one) for one in series]
    np.testing.assert_allclose(together, one_by_one)
    variances = jnp.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    build = lambda variance: LinearGaussian(**{**parts, "observation_variance": variance})
    models = jax.vmap(build)(variances)
    together = jax.vmap(lambda model, one: model.log_likelihood(one))(models, series)
    assert float(together[1]) == pytest.approx(
        float(build(variances[1]).log_likelihood(series[1]))
    )


def test_simulated_series_have_the_models_moments(x64):
    parts = random_parts(2)
    model = LinearGaussian(**parts)
    draws = jax.vmap(lambda key: model.simulate(key, 5).series)(jr.split(jr.key(0), 20_000))
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
        ({"initial_mean": np.zeros((1, 1))}, "initial_mean: expected a vector"),
        ({"observation": np.ones(1)}, r"observation: expected the shape \[m, n\]"),
        ({"transition": np.ones((5, 2, 1))}, r"transition: .* or \[t, 1, 1\]"),
        ({"observation_offset": np.zeros(2)}, "observation_offset"),
    ],
)
def test_wrong_parts_are_named(changes, message):
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
def test_wrong_series_are_named(series, message):
    with pytest.raises(ValueError, match=message):
        one_state().log_likelihood(series)


@pytest.mark.parametrize(
    ("mask", "message"),
    [(np.ones(3), "expected True where observed"), (np.ones(4, bool), "expected the shape")],
)
def test_wrong_masks_are_named(mask, message):
    with pytest.raises(ValueError, match=message):
        one_state().log_likelihood(np.zeros(3), mask)


def test_parts_that_change_must_reach_as_far_as_the_forecast():
    model = one_state(observation=np.ones((5, 1, 1)))
    model.forecast(np.zeros(3), 2)
    with pytest.raises(ValueError, match="observation: it changes with time and has 5 steps"):
        model.forecast(np.zeros(4), 2)
    with pytest.raises(ValueError, match="num_steps"):
        model.forecast(np.zeros(3), 0)


def test_a_negative_variance_that_cannot_be_looked_at_gives_nan():
    log_likelihood = jax.jit(
        lambda variance: one_state(observation_variance=variance).log_likelihood(np.zeros(3))
    )
    assert jnp.isfinite(log_likelihood(np.full(1, 0.5)))
    assert jnp.isnan(log_likelihood(np.full(1, -0.5)))


def test_nothing_observed_says_nothing():
    model = one_state()
    series = np.full(4, np.nan)
    assert model.log_likelihood(series) == 0.0
    np.testing.assert_allclose(model.filter(series).covariance[:, 0, 0], [1, 2, 3, 4])
    np.testing.assert_allclose(model.smooth(series).covariance[:, 0, 0], [1, 2, 3, 4])
