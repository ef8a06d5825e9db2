"""Importance weights against numpy, ArviZ and closed forms."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from relbo import evaluate
from relbo.evaluate.batches import map_batched
from relbo.evaluate.importance import log_mean_weight
from targets import TARGETS

GAUSSIAN = TARGETS["gaussian"]


class Source(eqx.Module):
    """Weighted draws from a base; records each time it is traced."""

    base: relbo.DiagonalNormal
    traced: list = eqx.field(static=True)

    def __call__(self, key):
        self.traced.append(1)
        z, log_q = self.base.sample(key)
        return z, GAUSSIAN.logdensity_fn(z) - log_q


class _Traces(list):
    def __hash__(self):
        return id(self)


def log_weights(shape=(3, 400), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_log_mean_agrees_with_numpy():
    logs = log_weights()
    mean = evaluate.log_mean(jnp.asarray(logs + 200.0))
    weights = np.exp(logs)
    average = weights.mean(axis=1)
    np.testing.assert_allclose(mean.value, 200.0 + np.log(average), rtol=1e-6)
    stderr = weights.std(axis=1, ddof=1) / average / np.sqrt(400)
    np.testing.assert_allclose(mean.stderr, stderr, rtol=1e-4)
    ess = weights.sum(axis=1) ** 2 / np.square(weights).sum(axis=1)
    np.testing.assert_allclose(mean.ess, ess, rtol=1e-4)


def test_stderr_is_the_spread_of_repeated_estimates():
    means = evaluate.log_mean(jnp.asarray(0.5 * log_weights((500, 200))))
    assert np.std(means.value) == pytest.approx(np.mean(means.stderr), rel=4 / np.sqrt(1000))


def test_log_mean_weight_is_stable_and_its_error_that_of_repetitions():
    rng = np.random.default_rng(0)
    spread = 0.7
    found = [log_mean_weight(-5000 + spread * rng.normal(size=400)) for _ in range(300)]
    values, errors = np.array(found).T
    assert abs(values.mean() - (-5000 + spread**2 / 2)) < 4 * values.std() / 300**0.5 + 1e-3
    np.testing.assert_allclose(errors.mean(), values.std(), rtol=0.2)
    assert log_mean_weight(np.full(4, -np.inf)) == (-np.inf, np.inf)


def test_an_estimate_agrees_with_log_mean(x64):
    logs = np.append(log_weights((401,)), [np.nan, -np.inf])
    estimate, mean = evaluate.importance_estimate(logs), evaluate.log_mean(jnp.asarray(logs))
    found = (estimate.value, estimate.stderr, estimate.ess)
    np.testing.assert_allclose(found, mean, rtol=1e-10)


def test_nan_weights_count_as_zero():
    mean = evaluate.log_mean(jnp.array([0.0, jnp.nan, -jnp.inf, 0.0]))
    assert mean.value == pytest.approx(np.log(0.5))
    assert mean.ess == pytest.approx(2.0)


def test_no_positive_weight_is_minus_infinity_with_an_infinite_error():
    mean = evaluate.log_mean(jnp.full(4, -jnp.inf))
    assert (mean.value, mean.stderr, mean.ess) == (-np.inf, np.inf, 0.0)
    estimate = evaluate.importance_estimate(np.full(30, -np.inf))
    assert (estimate.value, estimate.pareto_k) == (-np.inf, np.inf)


@pytest.mark.parametrize("k", [0.3, 0.9])
def test_pareto_k_is_the_shape_of_the_tail(k):
    """The power -k of a uniform variable has a Pareto tail of shape k; its inverse has none."""
    uniform = np.random.default_rng(0).uniform(size=20_000)
    _, found = evaluate.pareto_smoothed(-k * np.log(uniform))
    # The tail holds 3 sqrt(n) draws, and the error of its shape is (1 + k) over their root.
    assert abs(found - k) < 4 * (1 + k) / np.sqrt(3 * np.sqrt(uniform.size))
    _, other = evaluate.pareto_smoothed(k * np.log(uniform))
    assert other < 0.0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [25, 640, 5_000])
@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_smoothing_agrees_with_arviz(number, spread):
    import arviz  # takes seconds

    logs = spread * log_weights((number,))
    smoothed, k = evaluate.pareto_smoothed(logs)
    if not hasattr(arviz, "psislw"):
        pytest.skip("ArviZ 1 has it elsewhere")
    expected, expected_k = arviz.psislw(logs.copy())
    np.testing.assert_allclose(smoothed, expected, atol=1e-9)
    np.testing.assert_allclose(k, expected_k, atol=1e-9)


def test_smoothing_changes_only_the_tail():
    logs = log_weights((400,))
    smoothed, _ = evaluate.pareto_smoothed(logs)
    assert np.exp(smoothed).sum() == pytest.approx(1.0)
    shift = np.sort(smoothed)[:300] - np.sort(logs)[:300]
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    smooth = evaluate.importance_estimate(logs + 9.0, smooth=True)
    assert smooth.value == pytest.approx(9.0 - shift[0] - np.log(400), abs=1e-5)
    assert (smooth.estimator, smooth.valid_bound) == (
        "Pareto-smoothed importance weighting",
        None,
    )


def test_smoothed_estimate_if_smoothing_reduces_the_largest_weight():
    uniform = np.random.default_rng(4).uniform(size=400)
    logs = np.log(1.0 + uniform)
    logs[0] = np.log(2.3)
    smoothed, _ = evaluate.pareto_smoothed(logs)
    body = np.argsort(logs)[:300]
    assert np.max(smoothed - smoothed[body[0]]) < np.max(logs - logs[body[0]]) - 1e-4
    smooth = evaluate.importance_estimate(logs, smooth=True)
    plain = evaluate.importance_estimate(logs)
    assert smooth.value == pytest.approx(plain.value, abs=2e-3)


def test_smoothed_estimate_when_most_weights_are_zero():
    logs = np.where(np.arange(1_000) % 3 == 0, 0.1 * log_weights((1_000,)), -np.inf)
    smooth = evaluate.importance_estimate(logs, smooth=True)
    plain = evaluate.importance_estimate(logs)
    assert smooth.value == pytest.approx(plain.value, abs=0.02)


def test_rows_are_smoothed_apart_and_zeros_do_no_harm():
    logs = log_weights((2, 300))
    logs[0, :150] = -np.inf
    logs[1, 3] = np.nan
    smoothed, k = evaluate.pareto_smoothed(logs)
    assert smoothed.shape == (2, 300)
    np.testing.assert_allclose(np.exp(smoothed).sum(axis=1), 1.0)
    _, alone = evaluate.pareto_smoothed(logs[1])
    assert k[1] == alone
    assert np.all(np.isfinite(k))


def test_equal_weights_have_no_tail():
    smoothed, k = evaluate.pareto_smoothed(np.full(100, -3.0))
    assert k == 0.0
    np.testing.assert_allclose(smoothed, -np.log(100))


def test_equal_largest_weights_have_no_tail():
    logs = np.where(np.arange(400) % 2 == 0, 1.5, -np.inf)
    smoothed, k = evaluate.pareto_smoothed(logs)
    assert k == 0.0
    np.testing.assert_allclose(np.exp(smoothed), np.where(np.isfinite(logs), 1 / 200, 0.0))


@pytest.mark.parametrize("number", [2, 4, 16, 24])
def test_the_tail_of_few_weights_is_unknown(number):
    logs = log_weights((number,))
    smoothed, k = evaluate.pareto_smoothed(logs)
    assert k == np.inf
    np.testing.assert_allclose(np.exp(smoothed), np.exp(logs) / np.exp(logs).sum())


@pytest.mark.parametrize("number", [25, 26, 32])
def test_weights_stay_normalised_at_the_smallest_numbers_of_draws(number):
    smoothed, k = evaluate.pareto_smoothed(log_weights((50, number)))
    np.testing.assert_allclose(np.exp(smoothed).sum(axis=1), 1.0)
    assert not np.any(np.isnan(k))


def test_estimate_of_a_known_evidence():
    source = Source(GAUSSIAN.base, _Traces())
    estimate = evaluate.importance_weighting(jr.key(0), source, num_draws=1_000)
    assert abs(estimate.value - GAUSSIAN.log_evidence) < 4 * estimate.stderr
    assert 0.0 < estimate.stderr < 0.1
    assert 1.0 < estimate.ess < 1_000.0
    assert estimate.pareto_k < 0.7
    assert (estimate.num_draws, estimate.valid_bound) == (1_000, True)


def test_a_second_source_of_the_same_shapes_is_not_compiled_again():
    traced = _Traces()
    for i, loc in enumerate((0.0, 0.5)):
        source = Source(relbo.DiagonalNormal(jnp.full(2, loc), 1.3), traced)
        evaluate.importance_weighting(jr.key(i), source, num_draws=1_000)
        traces = traces if i else len(traced)
    assert len(traced) == traces


def test_batches_give_the_same_result_as_one_batch():
    values = jnp.arange(10.0)
    for batch_size in (3, 5, 100):
        doubled = map_batched(lambda x: 2 * x, values, batch_size)
        np.testing.assert_array_equal(doubled, 2 * values)


def test_invalid_arguments_raise_an_error_with_their_name():
    with pytest.raises(ValueError, match="log_weights: expected a vector of at least 2"):
        evaluate.importance_estimate(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="num_draws: expected an integer of 2"):
        evaluate.importance_weighting(jr.key(0), lambda k: (k, 0.0), num_draws=1)
