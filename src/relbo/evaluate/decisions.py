"""Acting on a predictive, and whether its probabilities can be acted on."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from relbo.evaluate.scores import CategoricalForecast


class Decision(NamedTuple):
    """What to do in each case."""

    action: Int[Array, "..."]
    """The row of the utility whose expectation is highest."""
    expected_utility: Float[Array, "..."]
    """What the predictive expects of it."""


def decide(forecast: CategoricalForecast, utility: Float[Array, "actions classes"]) -> Decision:
    r"""The action of highest expected utility under a predictive.

    $$a^*(x) = \arg\max_a \sum_y p(y \mid x)\, u(a, y)$$

    Args:
        forecast: probabilities of the classes.
        utility: what each action is worth in each class; as many actions as one likes.

    Returns:
        A `Decision` with one action a case.

    Example:
        To guess one of three classes or to abstain, which is worth half a right guess:

        >>> import jax.numpy as jnp
        >>> utility = jnp.vstack([jnp.eye(3), jnp.full((1, 3), 0.5)])
        >>> sure, unsure = [0.9, 0.1, 0.0], [0.4, 0.3, 0.3]
        >>> forecast = CategoricalForecast(jnp.log(jnp.array([sure, unsure])))
        >>> decide(forecast, utility).action.tolist()
        [0, 3]
    """
    utility = jnp.asarray(utility)
    probabilities = jnp.exp(forecast.log_probs)
    if utility.ndim != 2 or utility.shape[1] != probabilities.shape[-1]:
        raise ValueError(
            f"utility: expected a row an action and {probabilities.shape[-1]} columns, one a "
            f"class, got the shape {utility.shape}"
        )
    expected = probabilities @ utility.T
    return Decision(jnp.argmax(expected, axis=-1), jnp.max(expected, axis=-1))


class Reliability(NamedTuple):
    """How often cases are right, by how sure the predictive is of them."""

    confidence: Float[Array, " bins"]
    """The mean probability of the class that is guessed."""
    accuracy: Float[Array, " bins"]
    """How often it is right; zero in an empty bin, as is the confidence."""
    number: Int[Array, " bins"]


def reliability(
    forecast: CategoricalForecast, observed: Int[Array, " n"], *, num_bins: int = 15
) -> Reliability:
    """Sorts cases into bins of equal width by the probability of the likeliest class.

    Args:
        forecast: probabilities of the classes, a row a case.
        observed: the true classes.
        num_bins: how many bins.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins: expected at least 1, got {num_bins}")
    confidence = jnp.exp(jnp.max(forecast.log_probs, axis=-1))
    is_right = forecast.mode == jnp.asarray(observed)
    bins = jnp.clip(jnp.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    total = lambda values: jnp.zeros(num_bins).at[bins].add(values)
    count = total(jnp.ones_like(confidence))
    at_least_one = jnp.maximum(count, 1.0)
    return Reliability(
        total(confidence) / at_least_one,
        total(is_right.astype(confidence.dtype)) / at_least_one,
        count.astype(int),
    )


def calibration_error(
    forecast: CategoricalForecast, observed: Int[Array, " n"], *, num_bins: int = 15
) -> Scalar:
    """The expected calibration error: by how much confidence and accuracy differ on average.

    Args:
        forecast: probabilities of the classes, a row a case.
        observed: the true classes.
        num_bins: of `reliability`.

    References:
        Guo et al., On calibration of modern neural networks, 2017.
    """
    found = reliability(forecast, observed, num_bins=num_bins)
    shares = found.number / jnp.sum(found.number)
    return jnp.sum(shares * jnp.abs(found.accuracy - found.confidence))
