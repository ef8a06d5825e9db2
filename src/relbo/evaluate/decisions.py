"""Decisions by expected utility, and calibration of predicted probabilities."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Scalar

from relbo.core.checks import check_integer, check_shape
from relbo.core.parameters import is_traced
from relbo.evaluate.forecasts import CategoricalForecast

_SUM_ERROR = 1e-3
"""By how much a sum of given probabilities may differ from one."""


class Decision(NamedTuple):
    """The best action in each case."""

    action: Int[Array, "..."]
    """The row of the utility with the highest expectation."""
    expected_utility: Float[Array, "..."]
    """Its expected utility."""


def decide(forecast: CategoricalForecast | ArrayLike, utility: ArrayLike) -> Decision:
    r"""Returns the action with the highest expected utility.

    $$a^*(x) = \arg\max_a \sum_y p(y \mid x)\, u(a, y)$$

    Args:
        forecast: probabilities of the classes, along the last axis of an array.
        utility: the utility of each action (row) in each class (column).

    Returns:
        A `Decision` with one action per case.

    Example:
        Guess one of three classes, or abstain, which is worth half a correct guess:

        >>> import jax.numpy as jnp
        >>> utility = jnp.vstack([jnp.eye(3), jnp.full((1, 3), 0.5)])
        >>> sure, unsure = [0.9, 0.1, 0.0], [0.4, 0.3, 0.3]
        >>> decide(jnp.array([sure, unsure]), utility).action.tolist()
        [0, 3]
    """
    utility = jnp.asarray(utility)
    probabilities = _probabilities(forecast)
    check_shape("utility", utility, "actions", probabilities.shape[-1])
    expected = probabilities @ utility.T
    return Decision(jnp.argmax(expected, axis=-1), jnp.max(expected, axis=-1))


def _probabilities(forecast: CategoricalForecast | ArrayLike) -> Float[Array, "... classes"]:
    if isinstance(forecast, CategoricalForecast):
        return jnp.exp(forecast.log_probs)
    given = jnp.asarray(forecast, jnp.result_type(float))
    is_sound = given.ndim > 0 and (
        is_traced(given)
        or bool(jnp.all(given >= 0) & jnp.all(jnp.abs(given.sum(axis=-1) - 1) < _SUM_ERROR))
    )
    if not is_sound:
        raise ValueError(
            "forecast: expected a CategoricalForecast, or probabilities that add up to one "
            f"along the last axis, got the shape {given.shape}; draws are averaged first"
        )
    return given


class Reliability(NamedTuple):
    """Accuracy in bins of confidence; zeros in an empty bin."""

    confidence: Float[Array, " bins"]
    """The mean probability of the most probable class."""
    accuracy: Float[Array, " bins"]
    """How often the most probable class is the true one."""
    number: Int[Array, " bins"]
    """The number of cases."""


def reliability(
    forecast: CategoricalForecast, observed: ArrayLike, *, num_bins: int = 15
) -> Reliability:
    """Computes accuracy in bins of equal width by the probability of the most probable class.

    Args:
        forecast: probabilities of the classes, one row per case.
        observed: the true classes.
        num_bins: number of bins.
    """
    check_integer("num_bins", num_bins, 1)
    confidence = jnp.exp(jnp.max(forecast.log_probs, axis=-1))
    is_correct = forecast.mode == jnp.asarray(observed)
    bins = jnp.clip(jnp.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    total = lambda values: jnp.zeros(num_bins).at[bins].add(values)
    count = total(jnp.ones_like(confidence))
    at_least_one = jnp.maximum(count, 1.0)
    return Reliability(
        total(confidence) / at_least_one,
        total(is_correct.astype(confidence.dtype)) / at_least_one,
        count.astype(int),
    )


def calibration_error(
    forecast: CategoricalForecast, observed: ArrayLike, *, num_bins: int = 15
) -> Scalar:
    """Returns the expected calibration error: the mean difference of confidence and accuracy.

    Args:
        forecast: probabilities of the classes, one row per case.
        observed: the true classes.
        num_bins: number of bins, as in `reliability`.

    References:
        Guo et al., On calibration of modern neural networks, 2017.
    """
    found = reliability(forecast, observed, num_bins=num_bins)
    shares = found.number / jnp.sum(found.number)
    return jnp.sum(shares * jnp.abs(found.accuracy - found.confidence))
