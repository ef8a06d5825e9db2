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
from relbo.statespace.forecast_check import ForecastCheck, HeldOut, compare_with_held_out
from relbo.statespace.importance import ImportanceDraws, draw_by_importance
from relbo.statespace.structural import Trend
from relbo.statespace.trend_kinds import (
    TREND_KINDS,
    PaddedSeries,
    SeriesWithTrend,
    TrendKind,
    TrendProgram,
    forecast_draws,
    trend_of,
)

Transform = Literal["auto", "none", "log"]
LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)
"""The quantiles of the frame and the picture: the median, half and 95 % of the probability."""
_HOPELESS = 3.0
"""A transform whose log evidence is lower by this for one trend is not tried for the others."""
_HISTORY_SHOWN = 3
"""How many times the horizon of the past the picture shows."""


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
        **how: Any,
    ):
        self._series, self._season, self._key, self._how = series, season, key, how
        self._num_steps = len(series.values) + horizon
        self._fitted = self._fit(series.values, horizon, **how)
        self.index = series.labels_ahead(horizon)

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
        series, horizon = self._series.values, len(self.index)
        weights = self._fitted.weights
        number = min(horizon, len(series) // 3)
        held_out: HeldOut | None = None
        before = series[:-number]
        if (
            np.isfinite(series[-number:]).any()
            and np.isfinite(before).sum() > 2 * self._cycle + 3
        ):
            how = {**self._how, "transform": self.transform}
            fitted = self._fit(before, horizon, **how)
            with jax.enable_x64(True):
                held_out = compare_with_held_out(
                    fitted.distribution, series[:-number], series[-number:], self._cycle
                )
        return ForecastCheck.of(weights, held_out)

    def _fit(self, values: Float[np.ndarray, " t"], horizon: int, **how: Any) -> _Fitted:
        # As many steps each time, so that the compiled program is used again.
        with jax.enable_x64(True):
            program = _program(self._season)
            reader = _Reader(program, values, horizon, self._num_steps)
            return _fit(self._key, reader, **how)

    @property
    def _cycle(self) -> int:
        return self._season or 1

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
    if season is not None:
        check_integer("season", season, 2)
    read = read_series(series, dates)
    if transform == "log" and not _is_positive(read.values):
        raise ValueError(
            f'series: transform="log" needs values above zero, got {np.nanmin(read.values)}'
        )
    return SeriesForecast(
        read, horizon, season, as_key(key), transform=transform, num_draws=num_draws
    )


def _is_positive(values: Float[np.ndarray, " t"]) -> bool:
    return bool(np.nanmin(values) > 0)


class _Input(NamedTuple):
    """A series under one transform."""

    program: TrendProgram
    padded: PaddedSeries
    horizon: int
    transform: Any
    log_change: float
    """The log density of the series less that of the transformed series."""


class _Reader(NamedTuple):
    """A series, to be transformed and padded."""

    program: TrendProgram
    values: Float[np.ndarray, " t"]
    horizon: int
    num_steps: int
    """Number of steps of the padded series."""

    def transformed(self, transform: str) -> _Input:
        is_log = transform == "log"
        series = np.log(self.values) if is_log else self.values
        # d log(x) / dx = 1 / x
        change = -float(np.nansum(series)) if is_log else 0.0
        padded = self.program.pad(series, self.num_steps)
        return _Input(self.program, padded, self.horizon, transform, change)


def _fit(
    key: PRNGKeyArray, reader: _Reader, *, transform: Transform, num_draws: int
) -> _Fitted:
    """Averages over the kinds of trend, under the transform with the larger evidence."""
    choices = {"none": ["none"], "log": ["log"], "auto": ["none", "log"]}[transform]
    if not _is_positive(reader.values):
        choices = ["none"]
    inputs = [reader.transformed(name) for name in choices]
    first = [_Fit.of(key, given, TREND_KINDS[0], num_draws) for given in inputs]
    best = max(fit.log_evidence for fit in first)
    averages = [
        _average(given, [fit, *_other_fits(key, given, num_draws)], num_draws)
        for given, fit in zip(inputs, first, strict=True)
        if fit.log_evidence > best - _HOPELESS
    ]
    return max(averages, key=lambda fitted: fitted.log_evidence)


def _other_fits(key: PRNGKeyArray, given: _Input, num_draws: int) -> list["_Fit"]:
    return [_Fit.of(key, given, kind, num_draws) for kind in TREND_KINDS[1:]]


class _Fit(NamedTuple):
    """The posterior of a series under one kind of trend."""

    kind: TrendKind
    trend: Trend
    found: ImportanceDraws
    log_evidence: float
    """Of the series itself, so that transforms can be compared."""

    @classmethod
    def of(cls, key: PRNGKeyArray, given: _Input, kind: TrendKind, num_draws: int) -> "_Fit":
        trend = trend_of(kind, given.padded)
        data = SeriesWithTrend(given.padded, trend)
        found = draw_by_importance(key, given.program, data, num_draws=num_draws)
        return cls(kind, trend, found, found.evidence.value + given.log_change)


def _average(given: _Input, fits: list[_Fit], num_draws: int) -> _Fitted:
    """Mixes forecasts in proportion to the evidence of their models."""
    log_evidences = np.array([fit.log_evidence for fit in fits])
    total = float(np.logaddexp.reduce(log_evidences))
    shares = np.exp(log_evidences - total)
    ends = np.rint(num_draws * np.cumsum(shares)).astype(int)
    numbers = np.diff(ends, prepend=0).tolist()
    used = [(fit, number) for fit, number in zip(fits, numbers, strict=True) if number]
    draws, trends = (
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        for parts in zip(*(_some_draws(fit, number) for fit, number in used), strict=True)
    )
    ahead = forecast_draws(given.program, given.horizon, given.padded, draws, trends)
    kind = LogNormalMixtureForecast if given.transform == "log" else NormalMixtureForecast
    worst = min((fit.found.evidence for fit, _ in used), key=lambda one: one.ess or 0.0)
    log_evidence = total - float(np.log(len(fits)))
    probabilities = {fit.kind: float(s) for fit, s in zip(fits, shares, strict=True)}
    return _Fitted(given.transform, log_evidence, probabilities, worst, kind(*ahead))


def _some_draws(fit: _Fit, number: int) -> tuple[dict[str, np.ndarray], Trend]:
    """Returns evenly spaced draws, and the trend for each of them."""
    draws = {name: np.asarray(values) for name, values in fit.found.draws.items()}
    length = len(next(iter(draws.values())))
    chosen = np.linspace(0, length - 1, number).round().astype(int)
    trends = Trend(*(np.full(number, value) for value in fit.trend))
    return {name: values[chosen] for name, values in draws.items()}, trends


@lru_cache
def _program(season: int | None) -> TrendProgram:
    """One program for each season, because it is compiled once for each object."""
    return TrendProgram(season)
