"""Decisions and calibration against sums by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from relbo.evaluate import CategoricalForecast, calibration_error, decide, reliability


def forecast(*rows):
    return CategoricalForecast(jnp.log(jnp.array(rows)))


def test_highest_expected_utility_by_hand():
    utility = jnp.array([[1.0, -4.0], [-1.0, 2.0], [0.2, 0.2]])
    decision = decide(forecast([0.95, 0.05], [0.5, 0.5], [0.7, 0.3]), utility)
    np.testing.assert_array_equal(decision.action, [0, 1, 2])
    np.testing.assert_allclose(decision.expected_utility, [0.75, 0.5, 0.2], atol=1e-6)


def test_the_identity_utility_chooses_the_most_probable_class():
    guesses = CategoricalForecast(jr.normal(jr.key(0), (20, 4)))
    np.testing.assert_array_equal(decide(guesses, jnp.eye(4)).action, guesses.mode)


def test_abstaining_is_best_below_its_utility():
    guesses = CategoricalForecast(3.0 * jr.normal(jr.key(1), (50, 4)))
    utility = jnp.vstack([jnp.eye(4), jnp.full((1, 4), 0.7)])
    abstains = np.asarray(decide(guesses, utility).action) == 4
    sure = np.exp(np.max(guesses.log_probs, axis=-1))
    np.testing.assert_array_equal(abstains, sure < 0.7)
    assert 0 < abstains.sum() < 50


@pytest.mark.parametrize("utility", [jnp.eye(3), jnp.ones(2)])
def test_utility_must_have_one_column_per_class(utility):
    with pytest.raises(ValueError, match=r"utility: expected the shape \[actions, 2\]"):
        decide(forecast([0.5, 0.5]), utility)


def test_reliability_by_hand():
    guesses = forecast([0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.0, 1.0])
    found = reliability(guesses, jnp.array([0, 1, 0, 1]), num_bins=4)
    np.testing.assert_array_equal(found.number, [0, 0, 1, 3])
    np.testing.assert_allclose(found.confidence, [0, 0, 0.6, 2.7 / 3], atol=1e-6)
    np.testing.assert_allclose(found.accuracy, [0, 0, 1, 2 / 3], atol=1e-6)
    error = calibration_error(guesses, jnp.array([0, 1, 0, 1]), num_bins=4)
    np.testing.assert_allclose(error, 0.25 * 0.4 + 0.75 * (0.9 - 2 / 3), atol=1e-6)


def test_calibrated_probabilities_have_a_small_error():
    number = 20_000
    guesses = CategoricalForecast(2.0 * jr.normal(jr.key(2), (number, 3)))
    observed = jr.categorical(jr.key(3), guesses.log_probs)
    # Each of 15 bins has an error of about half the inverse root of its size.
    assert calibration_error(guesses, observed) < 2 * 0.5 * (15 / number) ** 0.5
    flattened = CategoricalForecast(0.3 * guesses.log_probs)
    assert calibration_error(flattened, observed) > 0.1


def test_fewer_than_one_bin_raises_an_error():
    with pytest.raises(ValueError, match="num_bins: expected an integer of 1 or more, got 0"):
        reliability(forecast([0.5, 0.5]), jnp.array([0]), num_bins=0)


def test_probabilities_may_be_an_array():
    utility = jnp.array([[0.0, -10.0], [-1.0, 4.0]])
    rows = ([0.95, 0.05], [0.5, 0.5])
    found, expected = decide(np.array(rows), utility), decide(forecast(*rows), utility)
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_allclose(found.expected_utility, expected.expected_utility, rtol=1e-5)
    assert jax.jit(decide)(np.array(rows), utility).action.tolist() == found.action.tolist()
    for wrong in (np.array([0, 1, 1]), np.array([[1.5, -0.5]]), 0.3):
        with pytest.raises(ValueError, match="forecast: expected a CategoricalForecast"):
            decide(wrong, utility)
