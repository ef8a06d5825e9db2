"""Forecasts a series in one call."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float, PRNGKeyArray

from relbo.core.checks import check_choice, check_integer
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.forecasts import (
    AbstractRealForecast,
    LogNormalMixtureForecast,
    NormalMixtureForecast,
)
from relbo.evaluate.record import Evaluation
from relbo.statespace.dated_series import DatedSeries, read_series
from relbo.statespace.forecast_check import ForecastCheck, compare_with_held_out
from relbo.statespace.importance import ImportanceDraws, draw_by_importance
from relbo.statespace.structural import Trend
from relbo.statespace.trend_kinds import (
    TREND_KINDS,
    SeriesWithTrend,
    TrendKind,
    TrendProgram,
    forecast_draws,
)

Transform = Literal["auto", "none", "log"]
LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)
"""The quantiles of the frame and the picture: the median, half and 95 % of the probability."""
_HOPELESS = 3.0
"""A transform whose log evidence is lower by this for one trend is not tried for the others."""
_HISTORY_SHOWN = 3
"""How many times the horizon of the past the picture shows."""


class SeriesForecast:
    """A forecast of a series: a distribution of each of the next steps.

    `relbo.statespace.forecast` makes one.

    Example:
        >>> ahead = forecast(series, horizon=24, season=12)
        >>> print(ahead)             # a table of quantiles by date
        >>> ahead.to_frame()         # the same for pandas
        >>> ahead.plot()
        >>> print(ahead.check())     # whether to trust it
    """

    def __init__(
        self,
        series: DatedSeries,
        horizon: int,
        season: int | None,
        key: PRNGKeyArray,
        transform: Transform,
        num_draws: int,
    ):
        self._series, self._season, self._key = series, season, key
        self._num_draws = num_draws
        self.index = series.labels_ahead(horizon)
        self._fitted = self._fit(series.values, transform)

    @property
    def history(self) -> pd.Series:
        """The observed series."""
        return pd.Series(self._series.values, self._series.labels, name=self._series.name)

    @property
    def transform(self) -> str:
        """`"log"` if seasons and noise grow with the level, else `"none"`."""
        return self._fitted.transform

    @property
    def trends(self) -> dict[str, float]:
        """The probability of each kind of trend: `"none"`, or how its slope changes."""
        return self._fitted.trends

    @property
    def log_evidence(self) -> float:
        """An estimate of log p(series)."""
        return self._fitted.log_evidence

    @property
    def distribution(self) -> AbstractRealForecast:
        """The predictive distributions, for the scores of `relbo.evaluate`."""
        # In the caller's precision.
        return jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf)), self._fitted.distribution
        )

    def quantile(self, level: float) -> pd.Series:
        """Returns a quantile of each of the next steps."""
        with jax.enable_x64(True):
            values = np.asarray(self._fitted.distribution.quantile(level))
        return pd.Series(values, self.index, name=f"{100 * level:g}%")

    @property
    def mean(self) -> pd.Series:
        """The mean of each of the next steps."""
        with jax.enable_x64(True):
            values = np.asarray(self._fitted.distribution.mean)
        return pd.Series(values, self.index, name="mean")

    def to_frame(self, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Returns the mean and quantiles, one row for each of the next steps."""
        columns = [self.mean, *(self.quantile(level) for level in levels)]
        return pd.concat(columns, axis=1)

    def check(self) -> ForecastCheck:
        """Forecasts the last known steps from those before, and judges the forecast.

        It takes as long as the forecast itself.
        """
        series, cycle = self._series.values, self._season or 1
        number = min(len(self.index), len(series) // 3)
        before, last = series[:-number], series[-number:]
        held_out = None
        if np.isfinite(last).any() and np.isfinite(before).sum() > 2 * cycle + 3:
            fitted = self._fit(before, self._fitted.transform)
            with jax.enable_x64(True):
                held_out = compare_with_held_out(fitted.distribution, before, last, cycle)
        return ForecastCheck.of(self._fitted.weights, held_out)

    def _fit(self, values: Float[np.ndarray, " t"], transform: Transform) -> "_Fitted":
        # As many steps each time, so that the compiled program is used again.
        horizon = len(self.index)
        num_steps = len(self._series.values) + horizon
        program = _program(self._season)
        with jax.enable_x64(True):
            return _fit(
                self._key, program, values, num_steps, horizon, transform, self._num_draws
            )

    def plot(self, axes: Any = None) -> Any:
        """Draws the end of the series and a fan of quantiles; returns matplotlib's axes.

        Args:
            axes: where to draw; by default a new figure.
        """
        from relbo.statespace.fan import draw_fan

        shown = self.history.iloc[-_HISTORY_SHOWN * len(self.index) :]
        return draw_fan(shown, self.to_frame(), axes)

    def __repr__(self) -> str:
        return self.to_frame().to_string(float_format=lambda value: f"{value:.5g}")

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(float_format=lambda value: f"{value:.5g}")


def forecast(
    series: Any,
    horizon: int,
    season: int | None = None,
    *,
    dates: Any = None,
    transform: Transform = "auto",
    num_draws: int = 500,
    key: KeyLike = 0,
) -> SeriesForecast:
    """Forecasts a series: a trend, seasons and noise, with their scales integrated out.

    The model is `StructuralModel`: without a trend, with a slope that changes slowly, with one
    that changes fast, and with one that also decays, each with the share that its evidence
    gives it. The Kalman filter integrates the path of trend and seasons out, adaptive
    importance sampling integrates over the scales, and the forecast is a mixture over their
    draws. It is computed in float64.

    Args:
        series: a pandas Series, whose index may have dates, or an array, a list or a column of
            another library. NaN marks missing values.
        horizon: number of steps to forecast.
        season: number of steps in a cycle of seasons, such as 12 for months; `None` for none.
        dates: one date for each value, if the series has none.
        transform: `"log"` for seasons and noise that grow with the level, `"none"`, or `"auto"`
            for the one with the larger evidence.
        num_draws: number of draws of the scales in the mixture.
        key: a random key or an integer seed.

    Returns:
        A `SeriesForecast`, with quantiles, a picture and `check()`.

    Example:
        >>> from relbo.data import load_co2
        >>> co2 = load_co2()
        >>> ahead = forecast(co2.values[:120], horizon=24, season=12, dates=co2.months[:120])
        >>> print(ahead, ahead.check())
    """
    check_choice("transform", transform, ("auto", "none", "log"))
    check_integer("horizon", horizon, 1)
    check_integer("season", season, 2, optional=True)
    read = read_series(series, dates)
    if transform == "log" and not _is_positive(read.values):
        raise ValueError(
            f'series: transform="log" needs values above zero, got {np.nanmin(read.values)}'
        )
    return SeriesForecast(read, horizon, season, as_key(key), transform, num_draws)


def _is_positive(values: Float[np.ndarray, " t"]) -> bool:
    return bool(np.nanmin(values) > 0)


class _Fitted(NamedTuple):
    """The posterior of a series under one transform, and its forecast."""

    transform: Literal["none", "log"]
    log_evidence: float
    """Of the series itself, so that transforms can be compared."""
    trends: dict[str, float]
    """The probability of each kind of trend."""
    weights: Evaluation
    """The weights of the draws of the scales, of the model where they are worst."""
    distribution: AbstractRealForecast


class _TrendFit(NamedTuple):
    """The posterior of a transformed series under one kind of trend."""

    kind: TrendKind
    data: SeriesWithTrend
    found: ImportanceDraws
    log_evidence: float
    """Of the series itself, so that transforms can be compared."""

    def some_draws(self, number: int) -> tuple[dict[str, np.ndarray], Trend]:
        """Returns evenly spaced draws, and the trend for each of them."""
        draws = {name: np.asarray(values) for name, values in self.found.draws.items()}
        length = len(next(iter(draws.values())))
        chosen = np.linspace(0, length - 1, number).round().astype(int)
        trends = Trend(*(np.full(number, value) for value in self.data.trend))
        return {name: values[chosen] for name, values in draws.items()}, trends


class _TransformedSeries(NamedTuple):
    """A series under one transform, to be fitted by each kind of trend."""

    transform: Literal["none", "log"]
    program: TrendProgram
    values: Float[np.ndarray, " t"]
    num_steps: int
    """The number of steps with those of the forecast."""

    def fit(self, key: PRNGKeyArray, kind: TrendKind, num_draws: int) -> _TrendFit:
        data = self.program.pad(self.values, self.num_steps, kind)
        found = draw_by_importance(key, self.program, data, num_draws=num_draws)
        # d log(x) / dx = 1 / x
        log_change = -float(np.nansum(self.values)) if self.transform == "log" else 0.0
        return _TrendFit(kind, data, found, found.evidence.value + log_change)

    def average(self, fits: list[_TrendFit], horizon: int, num_draws: int) -> _Fitted:
        """Mixes forecasts in proportion to the evidence of their models."""
        log_evidences = np.array([fit.log_evidence for fit in fits])
        total = float(np.logaddexp.reduce(log_evidences))
        shares = np.exp(log_evidences - total)
        ends = np.rint(num_draws * np.cumsum(shares)).astype(int)
        numbers = np.diff(ends, prepend=0).tolist()
        used = [(fit, number) for fit, number in zip(fits, numbers, strict=True) if number]
        draws, trends = (
            jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            for parts in zip(*(fit.some_draws(number) for fit, number in used), strict=True)
        )
        ahead = forecast_draws(self.program.model, horizon, fits[0].data, draws, trends)
        kind = LogNormalMixtureForecast if self.transform == "log" else NormalMixtureForecast
        worst = min((fit.found.evidence for fit, _ in used), key=lambda one: one.ess or 0.0)
        log_evidence = total - float(np.log(len(fits)))
        probabilities = {fit.kind: float(s) for fit, s in zip(fits, shares, strict=True)}
        return _Fitted(self.transform, log_evidence, probabilities, worst, kind(*ahead))


def _fit(
    key: PRNGKeyArray,
    program: TrendProgram,
    values: Float[np.ndarray, " t"],
    num_steps: int,
    horizon: int,
    transform: Transform,
    num_draws: int,
) -> _Fitted:
    """Averages over the kinds of trend, under the transform with the larger evidence."""
    given = [_TransformedSeries("none", program, values, num_steps)]
    if transform != "none" and _is_positive(values):
        logs = _TransformedSeries("log", program, np.log(values), num_steps)
        given = [logs] if transform == "log" else [*given, logs]
    first_kind, *other_kinds = TREND_KINDS
    first = [series.fit(key, first_kind, num_draws) for series in given]
    best = max(fit.log_evidence for fit in first)
    averages = []
    for series, fit in zip(given, first, strict=True):
        if fit.log_evidence > best - _HOPELESS:
            others = [series.fit(key, kind, num_draws) for kind in other_kinds]
            averages.append(series.average([fit, *others], horizon, num_draws))
    return max(averages, key=lambda fitted: fitted.log_evidence)


@lru_cache
def _program(season: int | None) -> TrendProgram:
    """One program for each season, because it is compiled once for each object."""
    return TrendProgram(season)
