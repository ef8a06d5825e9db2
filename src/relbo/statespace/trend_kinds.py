"""Structural models with several kinds of trend, in one compiled program."""

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, ArrayLike, Float

from relbo.statespace.distributions import LinearGaussianSeries
from relbo.statespace.linear_gaussian import LinearGaussian
from relbo.statespace.structural import SeriesScale, StructuralModel, Trend

TrendKind = Literal["slow", "fast", "damped", "none"]
TREND_KINDS: tuple[TrendKind, ...] = get_args(TrendKind)
_DAMPING = 0.97
"""The share of a damped slope that is left after a step: half of it after 23 steps."""
_STEPS = 24
"""Series are padded to a multiple of this length, because programs are compiled by length."""


class PaddedSeries(NamedTuple):
    """A series with missing values at its end, for the steps of the forecast and beyond."""

    values: Array
    scale: SeriesScale
    """Its length is that of the series before padding."""


class SeriesWithTrend(NamedTuple):
    """The argument of the program: a series, and the kind of its trend in numbers."""

    padded: PaddedSeries
    trend: Trend


class TrendProgram:
    """`StructuralModel` as a NumPyro model that takes the kind of trend as data.

    Args:
        period: number of steps in a cycle of seasons; `None` for no seasons.
    """

    def __init__(self, period: int | None):
        self._model = StructuralModel(period)

    def __call__(self, data: SeriesWithTrend) -> None:
        values, scale = data.padded
        priors = self._model.priors(scale, data.trend)
        sites = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        process = LinearGaussianSeries(self.process(sites, data), len(values))
        numpyro.sample("series", process, obs=values)

    def pad(self, series: Float[np.ndarray, " t"], num_steps: int) -> PaddedSeries:
        """Adds missing values for the steps of a forecast, and up to a common length.

        Args:
            series: the observed series.
            num_steps: least number of steps in all.

        Raises:
            ValueError: if the series is constant, all missing or too short.
        """
        length = len(series)
        total = -(-num_steps // _STEPS) * _STEPS
        self._model.check_shape(jnp.asarray(series))
        padded = jnp.asarray(np.concatenate([series, np.full(total - length, np.nan)]))
        scale = self._model.scale_of(padded)
        return PaddedSeries(padded, scale._replace(length=jnp.full_like(scale.length, length)))

    def process(self, values: Mapping[str, ArrayLike], data: SeriesWithTrend) -> LinearGaussian:
        """Returns the state-space model at given values of the sites."""
        return self._model.process_of_scale(values, data.padded.scale, data.trend)


def trend_of(kind: TrendKind, padded: PaddedSeries) -> Trend:
    """Returns the numbers of a kind of trend.

    Args:
        kind: as `slope` of `StructuralModel`, or `"damped"`: the slope may change as much as a
            fast one, and decays to zero.
        padded: the series.
    """
    # Without a slope the size does not matter, but it must be positive.
    is_fast = kind in ("fast", "damped")
    size = 1.0 if is_fast else np.sqrt(3.0) / float(padded.scale.length)
    numbers = (float(kind != "none"), size, _DAMPING if kind == "damped" else 1.0)
    return Trend(*(jnp.asarray(number, padded.values.dtype) for number in numbers))


@partial(jax.jit, static_argnums=(0, 1))
def forecast_draws(
    program: TrendProgram,
    horizon: int,
    padded: PaddedSeries,
    draws: dict[str, Float[Array, " k"]],
    trends: Trend,
) -> tuple[Float[Array, "k h"], Float[Array, "k h"]]:
    """Returns means and standard deviations of the next steps.

    Args:
        program: the model.
        horizon: number of steps.
        padded: the series, with at least as many missing values at its end.
        draws: draws of the sites.
        trends: the trend of each draw.
    """
    length = padded.scale.length.astype(int)

    def one(inputs: tuple[dict[str, Array], Trend]) -> tuple[Array, Array]:
        values, trend = inputs
        process = program.process(values, SeriesWithTrend(padded, trend))
        # At missing values the filter predicts.
        ahead = process.filter(padded.values)
        cut = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, length, horizon)
        (loading,) = process.observation
        mean = cut(ahead.predicted_mean) @ loading
        variance = cut(ahead.predicted_covariance) @ loading @ loading
        return mean, jnp.sqrt(variance + process.observation_variance)

    return jax.lax.map(one, (draws, trends), batch_size=64)
