"""Scores that compare forecasts with observations.

The log score is better when larger; the interval score, the CRPS and the absolute error are
better when smaller.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Scalar

from relbo.core.checks import check_fraction
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.forecasts import (
    AbstractForecast,
    AbstractRealForecast,
    CategoricalForecast,
)


def log_score(forecast: AbstractForecast, observed: ArrayLike) -> Float[Array, "..."]:
    """Returns the log density (or log probability) of each observation; larger is better.

    Args:
        forecast: the predictive distribution.
        observed: the observations, in the shape of the forecast.

    Returns:
        One score for each observation.

    Example:
        >>> import jax.numpy as jnp
        >>> float(log_score(NormalForecast(jnp.zeros(1), 1.0), jnp.zeros(1))[0])
        -0.9189385175704956
    """
    return forecast.log_prob(_check_shape(forecast, observed))


def predictive_entropy(
    forecast: AbstractForecast, *, key: KeyLike | None = None, num_draws: int = 1_000
) -> Float[Array, "..."]:
    """Returns the entropy of the predictive distribution of each observation.

    Args:
        forecast: the predictive distribution.
        key: a random key or an integer seed, needed only for a mixture of normals.
        num_draws: number of Monte Carlo draws for a mixture.

    Returns:
        One entropy for each observation, in nats.
    """
    return forecast.entropy(None if key is None else as_key(key), num_draws)


def interval_score(
    forecast: AbstractRealForecast, observed: ArrayLike, *, alpha: float = 0.05
) -> Float[Array, "..."]:
    r"""Scores the central interval of probability $1 - \alpha$; smaller is better.

    $$(u - l) + \tfrac2\alpha (l - y)_+ + \tfrac2\alpha (y - u)_+$$

    Args:
        forecast: the predictive distribution.
        observed: the observations, y.
        alpha: the probability outside the interval.

    Returns:
        One score for each observation.

    References:
        Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation, 2007.
    """
    lower, upper = central_interval(forecast, alpha=alpha)
    observed = _check_shape(forecast, observed)
    outside = jax.nn.relu(lower - observed) + jax.nn.relu(observed - upper)
    return upper - lower + 2.0 / alpha * outside


def central_interval(
    forecast: AbstractRealForecast, *, alpha: float = 0.05
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the ends of the central interval of probability 1 - alpha."""
    check_fraction("alpha", alpha)
    return forecast.quantile(0.5 * alpha), forecast.quantile(1.0 - 0.5 * alpha)


def covered(
    forecast: AbstractRealForecast, observed: ArrayLike, *, alpha: float = 0.05
) -> Bool[Array, "..."]:
    """Returns whether each observation is in the central interval of probability 1 - alpha."""
    lower, upper = central_interval(forecast, alpha=alpha)
    observed = _check_shape(forecast, observed)
    return (lower <= observed) & (observed <= upper)


def coverage(
    forecast: AbstractRealForecast, observed: ArrayLike, *, alpha: float = 0.05
) -> Scalar:
    """Returns the fraction of observations in the central interval of probability 1 - alpha."""
    inside = covered(forecast, observed, alpha=alpha)
    return jnp.mean(inside, dtype=jnp.result_type(float))


def mae(forecast: AbstractRealForecast, observed: ArrayLike) -> Scalar:
    """Returns the mean absolute error of the median, the point forecast that minimises it."""
    return jnp.mean(jnp.abs(forecast.quantile(0.5) - _check_shape(forecast, observed)))


def crps(forecast: AbstractRealForecast, observed: ArrayLike) -> Float[Array, "..."]:
    r"""Returns the continuous ranked probability score, in the observations' unit.

    $$\int (F(t) - 1[t \ge y])^2\,dt = E|X - y| - \tfrac12 E|X - X'|$$

    Smaller is better. It is exact for a normal and for a mixture of normals; for draws it is
    the fair estimate, which is unbiased and costs one sort.

    Args:
        forecast: the predictive distribution, with distribution function F.
        observed: the observations, y.

    Returns:
        One score for each observation.

    References:
        Grimit et al., The continuous ranked probability score for circular variables and its
        application to mesoscale forecast ensemble verification, 2006.
    """
    return forecast.crps(_check_shape(forecast, observed))


def accuracy(forecast: CategoricalForecast, observed: ArrayLike) -> Scalar:
    """Returns the fraction of observations that are the most probable category."""
    hits = forecast.mode == _check_shape(forecast, observed)
    return jnp.mean(hits, dtype=forecast.log_probs.dtype)


def _check_shape(forecast: AbstractForecast, observed: ArrayLike) -> Array:
    # Broadcasting one observation against many forecasts would be a silent mistake.
    observed = jnp.asarray(observed)
    if observed.shape != forecast.shape:
        raise ValueError(
            f"observed: expected the shape {forecast.shape} of the forecast, "
            f"got {observed.shape}"
        )
    return observed
