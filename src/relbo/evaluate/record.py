"""Results of evaluations, and a warning for invalid bounds."""

import math
import warnings
from typing import NamedTuple

import numpy as np


class Evaluation(NamedTuple):
    """An estimate with its error and diagnostics."""

    value: float
    stderr: float | None
    """The Monte Carlo error of `value`; for a mean over data points, the standard error over
    points."""
    estimator: str
    valid_bound: bool | None
    """Whether the expected value is a lower bound; `None` if that depends or is unknown."""
    num_draws: int
    """Number of weighted draws; for a mean over data points, per point."""
    ess: float | None = None
    """The effective sample size; for a mean over data points, the smallest."""
    pareto_k: float | None = None
    """The tail index of the weights; above 0.7 the error is unreliable. For a mean over data
    points, the largest."""


class PointwiseEvaluation(NamedTuple):
    """An estimate for each data point."""

    values: np.ndarray
    stderrs: np.ndarray
    estimator: str
    valid_bound: bool | None
    num_draws: int
    """Number of weighted draws of each point."""
    ess: np.ndarray
    pareto_k: np.ndarray | None = None

    def mean(self) -> Evaluation:
        """Returns the mean over data points with its standard error.

        The spread over points includes the Monte Carlo error of each point.
        """
        return Evaluation(
            float(np.mean(self.values, dtype=np.float64)),
            _standard_error(self.values),
            self.estimator,
            self.valid_bound,
            self.num_draws,
            float(np.min(self.ess)),
            None if self.pareto_k is None else float(np.max(self.pareto_k)),
        )


class BoundWarning(UserWarning):
    """A reported lower bound exceeds an estimate of the quantity that it bounds."""


def check_bound(
    bound: Evaluation | PointwiseEvaluation,
    reference: Evaluation | PointwiseEvaluation,
    *,
    name: str = "the bound",
    num_errors: float = 4.0,
) -> bool:
    """Warns if a lower bound exceeds an annealed estimate by more than the Monte Carlo error.

    The estimate is itself a lower bound in expectation, so there are two possible causes: the
    annealing has not converged, or the bound is invalid.

    Args:
        bound: the reported lower bound. A surrogate (`valid_bound` false) always passes.
        reference: the estimate, for example from `annealed_importance`. Two pointwise
            evaluations are compared point by point, which cancels the spread of the data.
        name: the name of the bound in the message.
        num_errors: tolerance in combined standard errors.

    Returns:
        Whether the bound is consistent with the estimate.

    Example:
        >>> estimate = Evaluation(-10.0, 0.1, "annealed importance sampling", True, 64)
        >>> check_bound(Evaluation(-10.2, 0.1, "elbo", True, 1_000), estimate)
        True
    """
    if bound.valid_bound is False:
        return True
    excess, error = _excess(bound, reference)
    # Written so that NaN fails.
    if excess <= num_errors * error:
        return True
    warnings.warn(
        f"{name} ({bound.estimator}) exceeds the estimate by {reference.estimator} by "
        f"{excess:.3f} nats, with a standard error of {error:.3f}: either the annealing has "
        "not converged (try more temperatures or chains), or the bound is not valid",
        BoundWarning,
        stacklevel=2,
    )
    return False


def _excess(
    bound: Evaluation | PointwiseEvaluation, reference: Evaluation | PointwiseEvaluation
) -> tuple[float, float]:
    """Returns the bound minus the reference, and the standard error of the difference."""
    if isinstance(bound, PointwiseEvaluation) and isinstance(reference, PointwiseEvaluation):
        if bound.values.shape != reference.values.shape:
            raise ValueError(
                "bound, reference: expected evaluations of the same data points, got "
                f"{bound.values.shape} and {reference.values.shape}"
            )
        difference = bound.values - reference.values
        errors = np.concatenate([bound.stderrs, reference.stderrs], dtype=np.float64)
        monte_carlo = float(np.linalg.norm(errors)) / difference.size
        # The spread over a few points may be small by chance.
        error = max(monte_carlo, _standard_error(difference) or 0.0)
        return float(np.mean(difference, dtype=np.float64)), error
    ours, theirs = (
        e.mean() if isinstance(e, PointwiseEvaluation) else e for e in (bound, reference)
    )
    return ours.value - theirs.value, math.hypot(ours.stderr or 0.0, theirs.stderr or 0.0)


def _standard_error(values: np.ndarray) -> float | None:
    if values.size < 2:
        return None
    return float(np.std(values, ddof=1, dtype=np.float64) / math.sqrt(values.size))
