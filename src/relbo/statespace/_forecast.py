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
from relbo.statespace.importance import importance_draws
from relbo.statespace.structural import Slope, StructuralModel

Transform = Literal["auto", "none", "log"]
LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)
"""The quantiles of the frame and the picture: the median, half and 95 % of the probability."""
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
        self._fitted = _fit(key, series.values, horizon, season, **how)
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
        """The probability of each kind of trend (`slope` of `StructuralModel`)."""
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
        before = np.concatenate([np.full(number, np.nan), series[:-number]])
        if (
            np.isfinite(series[-number:]).any()
            and np.isfinite(before).sum() > 2 * self._cycle + 3
        ):
            # Missing values in front, so that the compiled program is used again.
            how = {**self._how, "transform": self.transform}
            fitted = _fit(self._key, before, horizon, self._season, **how)
            with jax.enable_x64(True):
                held_out = compare_with_held_out(
                    fitted.distribution, series[:-number], series[-number:], self._cycle
                )
        return ForecastCheck.of(weights, held_out)

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

    The model is `StructuralModel`: without a trend, with one whose slope changes slowly, and
    with one whose slope changes fast, each with the share that its evidence gives it. The
    Kalman filter integrates the path of trend and seasons out, adaptive importance sampling
    integrates over the scales, and the forecast is a mixture over their draws. It is computed
    in float64.

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


def _fit(
    key: PRNGKeyArray,
    values: Float[np.ndarray, " t"],
    horizon: int,
    season: int | None,
    *,
    transform: Transform,
    num_draws: int,
) -> _Fitted:
    """Chooses a transform by its evidence, then averages over the kinds of trend."""
    _model(season, "slow").scale_of(values)  # raises, with a message about the series
    choices = {"none": ["none"], "log": ["log"], "auto": ["none", "log"]}[transform]
    if not _is_positive(values):
        choices = ["none"]
    with jax.enable_x64(True):
        fit = lambda slope, name: _Fit(key, _model(season, slope), values, name, num_draws)
        fits = {name: fit("slow", name) for name in choices}
        chosen = max(fits, key=lambda name: fits[name].log_evidence)
        others = [fit(slope, chosen) for slope in ("fast", "none")]
        return _average([fits[chosen], *others], horizon, num_draws)


class _Fit:
    """The posterior of a series under one model and one transform."""

    def __init__(
        self,
        key: PRNGKeyArray,
        model: StructuralModel,
        values: Float[np.ndarray, " t"],
        transform: Any,
        num_draws: int,
    ):
        self.model, self.transform = model, transform
        self.series = np.log(values) if transform == "log" else values
        self.found = importance_draws(key, model, self.series, num_draws=num_draws)
        # Of the series itself: d log(x) / dx = 1 / x
        change = np.nansum(self.series) if transform == "log" else 0.0
        self.log_evidence = self.found.evidence.value - float(change)

    def forecast(self, horizon: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns means and standard deviations by draw, for some of the draws."""
        ahead = self.model.forecast(self.found.draws, self.series, horizon)
        chosen = np.linspace(0, len(ahead.loc) - 1, number).round().astype(int)
        return np.asarray(ahead.loc)[chosen], np.asarray(ahead.scale)[chosen]


def _average(fits: list[_Fit], horizon: int, num_draws: int) -> _Fitted:
    """Mixes forecasts in proportion to the evidence of their models."""
    log_evidences = np.array([fit.log_evidence for fit in fits])
    total = float(np.logaddexp.reduce(log_evidences))
    shares = np.exp(log_evidences - total)
    numbers = [round(num_draws * float(share)) for share in shares]
    parts = [
        fit.forecast(horizon, number)
        for fit, number in zip(fits, numbers, strict=True)
        if number
    ]
    loc, scale = (np.concatenate(leaves) for leaves in zip(*parts, strict=True))
    transform = fits[0].transform
    kind = LogNormalMixtureForecast if transform == "log" else NormalMixtureForecast
    used = [fit.found.evidence for fit, number in zip(fits, numbers, strict=True) if number]
    worst = min(used, key=lambda weights: weights.ess or 0.0)
    log_evidence = total - float(np.log(len(fits)))
    trends = {fit.model.slope: float(s) for fit, s in zip(fits, shares, strict=True)}
    return _Fitted(transform, log_evidence, trends, worst, kind(loc, scale))


@lru_cache
def _model(season: int | None, slope: Slope) -> StructuralModel:
    """One model for each season, because programs are compiled once for each model."""
    return StructuralModel(season, slope=slope)
