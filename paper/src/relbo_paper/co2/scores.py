"""The window lengths of the carbon dioxide series, and the scores of a forecast."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from relbo.evaluate import (
    AbstractRealForecast,
    coverage,
    crps,
    interval_score,
    log_score,
    mae,
    predictive_entropy,
)

TRAIN, AHEAD, PERIOD = 120, 24, 12
"""Months."""
FIRST_MONTH = "1966-01"
"""The first month of the paper's window."""


def scores(forecast: AbstractRealForecast, observed: np.ndarray) -> dict[str, float]:
    """Returns the scores of one window, averaged over its months."""
    ahead = jnp.asarray(observed, forecast.mean.dtype)
    return {name: float(value) for name, value in _scores(forecast, ahead).items()}


# With the forecast as an argument, all forecasts of one type share a compiled program.
@jax.jit
def _scores(forecast: AbstractRealForecast, ahead: Array) -> dict[str, Array]:
    return {
        "MAE": mae(forecast, ahead),
        "interval score": jnp.mean(interval_score(forecast, ahead)),
        "log score": jnp.mean(log_score(forecast, ahead)),
        "CRPS": jnp.mean(crps(forecast, ahead)),
        "predictive entropy": jnp.mean(predictive_entropy(forecast, key=jr.key(0))),
        "coverage": coverage(forecast, ahead),
    }


def by_metric(each: Iterable[dict[str, float]]) -> dict[str, list[float]]:
    """Turns a list of score dictionaries into a dictionary of score lists."""
    each = list(each)
    return {metric: [one[metric] for one in each] for metric in each[0]}
