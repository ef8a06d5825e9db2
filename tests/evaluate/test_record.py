"""The warning for invalid bounds."""

import inspect
import warnings

import numpy as np
import pytest

from relbo import evaluate

ESTIMATE = evaluate.Evaluation(-10.0, 0.3, "annealed importance sampling", True, 64)


def reported(value, stderr=0.4, valid_bound=True):
    return evaluate.Evaluation(value, stderr, "elbo", valid_bound, 1_000)


def by_point(values, stderr=0.01):
    values = np.asarray(values, float)
    return evaluate.PointwiseEvaluation(
        values, np.full(values.shape, stderr), "elbo", True, 16, np.full(values.shape, 9.0)
    )


@pytest.mark.parametrize("value", [-20.0, -10.0, -8.01])
def test_bound_within_four_combined_errors_passes(value):
    """Errors of 0.3 and 0.4 combine to 0.5."""
    assert evaluate.check_bound(reported(value), ESTIMATE)


@pytest.mark.parametrize("value", [-7.99, 0.0, np.inf, np.nan])
def test_bound_beyond_four_combined_errors_warns(value):
    with pytest.warns(
        evaluate.BoundWarning, match=r"not\s+converged .* the bound is not valid"
    ):
        assert not evaluate.check_bound(reported(value), ESTIMATE)


def test_a_surrogate_passes():
    assert evaluate.check_bound(reported(0.0, valid_bound=False), ESTIMATE)


def test_a_bound_of_unknown_validity_is_checked():
    with pytest.warns(evaluate.BoundWarning, match="the flow"):
        evaluate.check_bound(reported(0.0, valid_bound=None), ESTIMATE, name="the flow")


def test_warning_points_at_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Without the frame of the type checker.
        inspect.unwrap(evaluate.check_bound)(reported(0.0), ESTIMATE)
    assert caught[0].filename == __file__


def test_data_points_are_compared_one_by_one():
    """0.1 nats is far below the spread of the data and far above the errors."""
    spread = 100.0 * np.random.default_rng(0).normal(size=50)
    with pytest.warns(evaluate.BoundWarning, match=r"0\.100 nats"):
        evaluate.check_bound(by_point(spread + 0.1), by_point(spread))
    assert evaluate.check_bound(by_point(spread + 0.001), by_point(spread))
    # The spread of the data hides it in the difference of means.
    assert evaluate.check_bound(by_point(spread + 0.1).mean(), by_point(spread).mean())


def test_different_data_points_raise_an_error():
    with pytest.raises(ValueError, match="expected evaluations of the same data points"):
        evaluate.check_bound(by_point(np.zeros(3)), by_point(np.zeros(4)))


def test_mean_over_points_has_the_standard_error_over_points():
    evaluation = by_point([1.0, 2.0, 3.0, 6.0])._replace(pareto_k=np.array([0.1, 0.9, 0, 0]))
    mean = evaluation.mean()
    assert mean.value == 3.0
    assert mean.stderr == pytest.approx(np.sqrt(14 / 3 / 4))
    assert (mean.ess, mean.pareto_k, mean.valid_bound) == (9.0, 0.9, True)
    assert by_point([1.0]).mean().stderr is None
