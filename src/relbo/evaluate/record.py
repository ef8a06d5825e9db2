"""What an evaluation returns, and the alarm for bounds that are none."""

import math
import warnings
from typing import NamedTuple

import numpy as np


class Evaluation(NamedTuple):
    """One estimate, and what one must know to read it."""

    value: float
    stderr: float | None
    """The Monte Carlo error of `value`; of a mean over data points, the error over them."""
    estimator: str
    valid_bound: bool | None
    """Whether the expected value is a lower bound; `None` where that depends or is open."""
    num_draws: int
    """Weighted draws; of a mean over data points, those of each point."""
    ess: float | None = None
    """The effective number of draws; of a mean over data points, the smallest."""
    pareto_k: float | None = None
    """The tail of the weights: above 0.7 the error is not to be believed. Of a mean over data
    points, the largest."""


class PointwiseEvaluation(NamedTuple):
    """One estimate for each data point."""

    values: np.ndarray
    stderrs: np.ndarray
    estimator: str
    valid_bound: bool | None
    num_draws: int
    """Weighted draws of each point."""
    ess: np.ndarray
    pareto_k: np.ndarray | None = None

    def mean(self) -> Evaluation:
        """The mean over data points, with its error over them.

        The spread over points holds the Monte Carlo error of each point already.
        """
        return Evaluation(
            float(np.mean(self.values, dtype=np.float64)),
            _error_of_mean(self.values),
            self.estimator,
            self.valid_bound,
            self.num_draws,
            float(np.min(self.ess)),
            None if self.pareto_k is None else float(np.max(self.pareto_k)),
        )


class BoundWarning(UserWarning):
    """A number that was reported as a lower bound lies above the estimate of what it bounds."""


def check_bound(
    bound: Evaluation | PointwiseEvaluation,
    reference: Evaluation | PointwiseEvaluation,
    *,
    name: str = "the bound",
    num_errors: float = 4.0,
) -> bool:
    """Warns when a lower bound exceeds an annealed estimate by more than Monte Carlo error.

    The estimate is itself a lower bound in expectation, so that either of the two may be to
    blame: the annealing has not converged, or the bound is not one.

    Args:
        bound: what is reported as a lower bound. A surrogate (`valid_bound` false) is not, and
            passes.
        reference: the estimate, as from `annealed_importance`. Of two evaluations by data
            point the differences are taken point by point, which cancels the spread of the
            data.
        name: what the message calls the bound.
        num_errors: how many combined standard errors are put down to Monte Carlo.

    Returns:
        Whether the bound holds, as far as one can tell.

    Example:
        >>> estimate = Evaluation(-10.0, 0.1, "annealed importance sampling", True, 64)
        >>> check_bound(Evaluation(-10.2, 0.1, "elbo", True, 1_000), estimate)
        True
    """
    if bound.valid_bound is False:
        return True
    excess, error = _excess(bound, reference)
    # A difference that is no number is no evidence that the bound holds.
    if excess <= num_errors * error:
        return True
    warnings.warn(
        f"{name} ({bound.estimator}) exceeds the estimate by {reference.estimator} by "
        f"{excess:.3f} nats, with a standard error of {error:.3f}: either the annealing has "
        "not converged (try more temperatures or chains), or the bound is not one",
        BoundWarning,
        stacklevel=2,
    )
    return False


def _excess(
    bound: Evaluation | PointwiseEvaluation, reference: Evaluation | PointwiseEvaluation
) -> tuple[float, float]:
    """How far the bound lies above the reference, and the standard error of that."""
    if isinstance(bound, PointwiseEvaluation) and isinstance(reference, PointwiseEvaluation):
        if bound.values.shape != reference.values.shape:
            raise ValueError(
                "bound, reference: expected evaluations of the same data points, got "
                f"{bound.values.shape} and {reference.values.shape}"
            )
        difference = bound.values - reference.values
        within = math.hypot(*(_within_error(e) for e in (bound, reference)))
        # The spread over few points may be small by chance.
        error = max(within, _error_of_mean(difference) or 0.0)
        return float(np.mean(difference, dtype=np.float64)), error
    ours, theirs = (
        e.mean() if isinstance(e, PointwiseEvaluation) else e for e in (bound, reference)
    )
    return ours.value - theirs.value, math.hypot(ours.stderr or 0.0, theirs.stderr or 0.0)


def _within_error(evaluation: PointwiseEvaluation) -> float:
    """The Monte Carlo error of the mean over given data points."""
    squares = np.square(evaluation.stderrs, dtype=np.float64)
    return float(np.sqrt(np.sum(squares)) / evaluation.stderrs.size)


def _error_of_mean(values: np.ndarray) -> float | None:
    if values.size < 2:
        return None
    return float(np.std(values, ddof=1, dtype=np.float64) / math.sqrt(values.size))
