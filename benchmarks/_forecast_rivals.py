"""Forecasts of statsmodels: UnobservedComponents and ETS, on the series or its logarithm.

Both choose the logarithm if its AIC is smaller, with the change of variables counted, as
`relbo.statespace.forecast` does by evidence. ETS also chooses its trend.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from relbo.evaluate import AbstractRealForecast, LogNormalMixtureForecast, NormalMixtureForecast


class Candidate(NamedTuple):
    """A fitted model: its criterion, and the normals that it forecasts."""

    criterion: float
    mean: np.ndarray
    scale: np.ndarray
    num_uncounted: int = 0
    """Number of first values that the likelihood leaves out."""


def unobserved_components(
    series: np.ndarray, season: int | None, horizon: int
) -> AbstractRealForecast:
    """A local linear trend with seasons, by maximum likelihood."""

    def candidates(values: np.ndarray) -> Iterator[Candidate]:
        from statsmodels.tsa.statespace.structural import UnobservedComponents

        structural: Any = UnobservedComponents
        fitted = structural(values, level="lltrend", seasonal=season).fit(disp=0, maxiter=500)
        ahead = fitted.get_forecast(horizon)
        yield Candidate(
            fitted.aic,
            np.asarray(ahead.predicted_mean),
            np.asarray(ahead.se_mean),
            fitted.loglikelihood_burn,
        )

    return _best_transform(series, candidates)


def exponential_smoothing(
    series: np.ndarray, season: int | None, horizon: int
) -> AbstractRealForecast:
    """ETS with additive errors and seasons, and no, a linear or a damped trend, by AICc."""

    def candidates(values: np.ndarray) -> Iterator[Candidate]:
        from statsmodels.tsa.exponential_smoothing.ets import ETSModel

        for trend, damped in ((None, False), ("add", False), ("add", True)):
            model: Any = ETSModel(
                pd.Series(values),  # its predictions need an index
                error="add",
                trend=trend,
                damped_trend=damped,
                seasonal=None if season is None else "add",
                seasonal_periods=season,
            )
            fitted = model.fit(disp=False, maxiter=500)
            length = len(values)
            ahead = fitted.get_prediction(start=length, end=length + horizon - 1)
            spread = np.sqrt(np.asarray(ahead.forecast_variance))
            yield Candidate(fitted.aicc, np.asarray(ahead.predicted_mean), spread)

    return _best_transform(series, candidates)


def _best_transform(
    series: np.ndarray, candidates: Callable[[np.ndarray], Iterator[Candidate]]
) -> AbstractRealForecast:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an estimate of zero for a scale is not a failure
        plain = min(candidates(series), key=lambda one: one.criterion)
        if series.min() <= 0:
            return NormalMixtureForecast(plain.mean[None], plain.scale[None])
        logs = min(candidates(np.log(series)), key=lambda one: one.criterion)
    change_of_variables = 2.0 * np.log(series[logs.num_uncounted :]).sum()
    if logs.criterion + change_of_variables < plain.criterion:
        return LogNormalMixtureForecast(logs.mean[None], logs.scale[None])
    return NormalMixtureForecast(plain.mean[None], plain.scale[None])
