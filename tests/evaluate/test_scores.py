"""Forecasts and scores against quadrature, NumPy loops and SciPy."""

from functools import cache

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from relbo import evaluate

NUM_PARTS, NUM_OBSERVED = 5, 3
OBSERVED = np.array([0.3, -2.0, 6.0])


@pytest.fixture(autouse=True)
def _double(x64):
    return


def mixture():
    draw = np.random.default_rng(0)
    loc = draw.normal(size=(NUM_PARTS, NUM_OBSERVED))
    scale = draw.uniform(0.2, 2.0, size=(NUM_PARTS, NUM_OBSERVED))
    return loc, scale


@cache
def parts_of(n):
    loc, scale = mixture()
    return stats.norm(loc[:, n], scale[:, n])


def crps_by_quadrature(cdf, observed, reach=30.0):
    below = integrate.quad(lambda t: cdf(t) ** 2, -reach, observed, limit=200)[0]
    above = integrate.quad(lambda t: (1 - cdf(t)) ** 2, observed, reach, limit=200)[0]
    return below + above


def forecasts():
    loc, scale = mixture()
    draws = np.random.default_rng(1).normal(size=(20, NUM_OBSERVED))
    return {
        "normal": evaluate.NormalForecast(loc[0], scale[0]),
        "mixture": evaluate.NormalMixtureForecast(loc, scale),
        "log-normals": evaluate.LogNormalMixtureForecast(loc, scale),
        "draws": evaluate.DrawsForecast(draws),
    }


def test_normal_scores_agree_with_scipy_and_quadrature():
    loc, scale = mixture()
    forecast = evaluate.NormalForecast(loc[0], scale[0])
    reference = stats.norm(loc[0], scale[0])
    np.testing.assert_allclose(
        evaluate.log_score(forecast, OBSERVED), reference.logpdf(OBSERVED)
    )
    np.testing.assert_allclose(evaluate.predictive_entropy(forecast), reference.entropy())
    expected = [
        crps_by_quadrature(stats.norm(m, s).cdf, y)
        for m, s, y in zip(loc[0], scale[0], OBSERVED, strict=True)
    ]
    np.testing.assert_allclose(evaluate.crps(forecast, OBSERVED), expected, rtol=1e-6)
    lower, upper = evaluate.central_interval(forecast, alpha=0.1)
    np.testing.assert_allclose([lower, upper], reference.interval(0.9), rtol=1e-10)


def test_mixture_log_score_is_the_log_of_the_mean_density():
    forecast = forecasts()["mixture"]
    expected = [np.log(parts_of(n).pdf(y).mean()) for n, y in enumerate(OBSERVED)]
    np.testing.assert_allclose(evaluate.log_score(forecast, OBSERVED), expected)


def test_mixture_crps_agrees_with_quadrature():
    forecast = forecasts()["mixture"]
    expected = [
        crps_by_quadrature(lambda t, n=n: parts_of(n).cdf(t).mean(), y)
        for n, y in enumerate(OBSERVED)
    ]
    np.testing.assert_allclose(evaluate.crps(forecast, OBSERVED), expected, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.02, 0.5])
def test_mixture_interval_agrees_with_a_root_finder(alpha):
    forecast = forecasts()["mixture"]
    ends = evaluate.central_interval(forecast, alpha=alpha)
    for level, end in zip((alpha / 2, 1 - alpha / 2), ends, strict=True):
        expected = [
            optimize.brentq(lambda t, n=n, p=level: parts_of(n).cdf(t).mean() - p, -30, 30)
            for n in range(NUM_OBSERVED)
        ]
        np.testing.assert_allclose(end, expected, atol=1e-9)


def test_mixture_entropy_agrees_with_quadrature():
    forecast = forecasts()["mixture"]
    num_draws = 4_000
    entropy = evaluate.predictive_entropy(forecast, key=jr.key(0), num_draws=num_draws)
    for n in range(NUM_OBSERVED):

        def surprise(t, power, n=n):
            density = parts_of(n).pdf(t).mean()
            return density * (-np.log(density)) ** power

        first, second = (
            integrate.quad(surprise, -15, 15, args=(power,), limit=200)[0] for power in (1, 2)
        )
        error = np.sqrt((second - first**2) / num_draws)
        assert abs(entropy[n] - first) < 4 * error


def test_mixture_entropy_draws_evenly_from_the_components():
    """Far apart, their entropy is that of one component plus the log of their number."""
    loc = 1e3 * jnp.arange(4.0)[:, None]
    forecast = evaluate.NormalMixtureForecast(loc, 1.0)
    entropy = evaluate.predictive_entropy(forecast, key=0, num_draws=4_000)
    exact = stats.norm.entropy() + np.log(4)
    assert abs(float(entropy[0]) - exact) < 4 * np.sqrt(0.5 / 4_000)


def test_a_mixture_of_equal_components_is_one_normal():
    loc, scale = mixture()
    one = evaluate.NormalForecast(loc[0], scale[0])
    same = evaluate.NormalMixtureForecast(
        np.tile(loc[0], (NUM_PARTS, 1)), np.tile(scale[0], (NUM_PARTS, 1))
    )
    for score in (evaluate.log_score, evaluate.crps, evaluate.interval_score):
        np.testing.assert_allclose(score(same, OBSERVED), score(one, OBSERVED), rtol=1e-9)


def test_log_normal_scores_agree_with_scipy_and_quadrature():
    loc, scale = np.array([[0.3], [-0.4]]), np.array([[0.5], [0.9]])
    parts = stats.lognorm(scale[:, 0], scale=np.exp(loc[:, 0]))
    forecast = evaluate.LogNormalMixtureForecast(loc, scale)
    for observed in (0.7, 3.0):
        seen = np.array([observed])
        expected = np.log(parts.pdf(observed).mean())
        np.testing.assert_allclose(evaluate.log_score(forecast, seen), expected)
        expected = crps_by_quadrature(lambda t: parts.cdf(t).mean(), observed, 60.0)
        np.testing.assert_allclose(evaluate.crps(forecast, seen), expected, rtol=1e-5)
    np.testing.assert_allclose(forecast.mean, parts.mean().mean())
    np.testing.assert_allclose(parts.cdf(forecast.quantile(0.9)[0]).mean(), 0.9)
    # Impossible, and one further from every draw than zero is.
    assert evaluate.log_score(forecast, np.array([-1.0]))[0] == -np.inf
    at_zero, below = (evaluate.crps(forecast, np.array([y])) for y in (0.0, -1.0))
    np.testing.assert_allclose(below, at_zero + 1.0)
    entropy = evaluate.predictive_entropy(forecast, key=0, num_draws=4_000)
    surprise = lambda t: -parts.pdf(t).mean() * np.log(parts.pdf(t).mean())
    assert abs(entropy[0] - integrate.quad(surprise, 1e-6, 60, limit=400)[0]) < 0.05


def test_sampled_crps_agrees_with_a_loop_over_pairs():
    draws = np.random.default_rng(1).normal(size=(20, NUM_OBSERVED))
    expected = np.zeros(NUM_OBSERVED)
    for n, y in enumerate(OBSERVED):
        pairs = [
            abs(a - b)
            for i, a in enumerate(draws[:, n])
            for j, b in enumerate(draws[:, n])
            if i != j
        ]
        expected[n] = np.mean(np.abs(draws[:, n] - y)) - 0.5 * np.mean(pairs)
    forecast = evaluate.DrawsForecast(draws)
    np.testing.assert_allclose(evaluate.crps(forecast, OBSERVED), expected)


def test_sampled_crps_is_unbiased_at_three_draws():
    """Its mean over many ensembles is the score of their distribution."""
    ensembles = np.random.default_rng(2).normal(size=(3, 40_000))
    observed = np.full(40_000, 0.7)
    scores = np.asarray(evaluate.crps(evaluate.DrawsForecast(ensembles), observed))
    exact = evaluate.crps(evaluate.NormalForecast(np.zeros(1), 1.0), observed[:1])[0]
    assert abs(scores.mean() - exact) < 4 * scores.std() / np.sqrt(scores.size)


def test_sampled_crps_is_accurate_far_from_zero():
    draws = np.random.default_rng(3).normal(size=(50, 1))
    near = evaluate.crps(evaluate.DrawsForecast(draws), np.zeros(1))
    far = evaluate.crps(evaluate.DrawsForecast(draws + 1e9), np.full(1, 1e9))
    np.testing.assert_allclose(far, near, atol=1e-6)


def test_interval_score_penalises_observations_outside():
    forecast = evaluate.NormalForecast(np.zeros(3), 1.0)
    reach = stats.norm.ppf(0.9)
    scores = evaluate.interval_score(forecast, np.array([0.0, -3.0, 4.0]), alpha=0.2)
    expected = 2 * reach + 10 * np.array([0.0, 3.0 - reach, 4.0 - reach])
    np.testing.assert_allclose(scores, expected)


def test_coverage_counts_both_ends():
    forecast = evaluate.NormalForecast(np.zeros(4), 1.0)
    observed = np.array([-1.9, 1.9, -2.0, 2.0])
    assert evaluate.coverage(forecast, observed) == 0.5
    assert evaluate.covered(forecast, observed).tolist() == [True, True, False, False]


def test_mae_uses_the_median():
    draws = np.array([[0.0, 5.0], [1.0, 5.0], [100.0, 5.0]])
    assert evaluate.mae(evaluate.DrawsForecast(draws), np.array([0.0, 7.0])) == 1.5


def test_categorical_scores_agree_with_scipy():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    observed = np.array([0, 1])
    # A constant in the logits cancels.
    forecast = evaluate.CategoricalForecast(np.log(probs) + 3.0)
    np.testing.assert_allclose(evaluate.log_score(forecast, observed), np.log([0.7, 0.1]))
    np.testing.assert_allclose(
        evaluate.predictive_entropy(forecast), stats.entropy(probs, axis=1)
    )
    assert evaluate.accuracy(forecast, observed) == 0.5


def test_a_categorical_mixture_averages_probabilities():
    probs = np.array([[[0.9, 0.1]], [[0.5, 0.5]]])
    forecast = evaluate.CategoricalForecast(np.log(probs), mixture=True)
    np.testing.assert_allclose(np.exp(forecast.log_probs), [[0.7, 0.3]])


def test_an_impossible_category_adds_no_entropy():
    forecast = evaluate.CategoricalForecast(np.array([0.0, -np.inf]))
    assert evaluate.predictive_entropy(forecast) == 0.0
    assert evaluate.log_score(forecast, np.array(1)) == -np.inf


@pytest.mark.parametrize("name", ["normal", "mixture", "draws"])
def test_scores_are_vectorised_over_any_leading_axes(name):
    forecast = forecasts()[name]
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1.0], axis=-1), forecast)
    observed = np.stack([OBSERVED, OBSERVED + 1.0], axis=-1)
    for score in (evaluate.crps, evaluate.interval_score):
        together = score(twice, observed)
        assert together.shape == (NUM_OBSERVED, 2)
        np.testing.assert_allclose(together[:, 0], score(forecast, OBSERVED))


@pytest.mark.parametrize("name", ["normal", "mixture", "draws"])
def test_observations_of_another_shape_raise_an_error(name):
    with pytest.raises(ValueError, match=r"observed: expected the shape \(3,\)"):
        evaluate.crps(forecasts()[name], np.zeros((2, 3)))


def test_invalid_arguments_raise_an_error_with_their_name():
    with pytest.raises(ValueError, match="scale: expected a number or the shape"):
        evaluate.NormalForecast(np.zeros(3), np.ones(2))
    with pytest.raises(ValueError, match="draws: expected draws along a leading axis"):
        evaluate.DrawsForecast(np.array(1.0))
    with pytest.raises(ValueError, match="logits: expected draws and categories"):
        evaluate.CategoricalForecast(np.zeros(3), mixture=True)
    with pytest.raises(ValueError, match="alpha: expected a number between 0 and 1"):
        evaluate.central_interval(forecasts()["normal"], alpha=5.0)
    with pytest.raises(ValueError, match="draws have no density"):
        evaluate.log_score(forecasts()["draws"], OBSERVED)
    with pytest.raises(ValueError, match="needs a random key"):
        evaluate.predictive_entropy(forecasts()["mixture"])
    with pytest.raises(ValueError, match="needs at least 2"):
        evaluate.crps(evaluate.DrawsForecast(np.zeros((1, 2))), np.zeros(2))
