"""Structural models with several kinds of trend, in one compiled program."""

from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.statespace.structural import SeriesScale, StructuralModel, Trend

TrendKind = Literal["slow", "fast", "damped", "none"]
TREND_KINDS: tuple[TrendKind, ...] = get_args(TrendKind)
_DAMPING = 0.97
"""The share of a damped slope that is left after a step: half of it after 23 steps."""
_STEPS = 24
"""Series are padded to a multiple of this length, because programs are compiled by length."""


class SeriesWithTrend(NamedTuple):
    """The argument of the program: a padded series, and the kind of its trend in numbers."""

    values: Array
    """With missing values at the end, for the steps of the forecast and beyond."""
    scale: SeriesScale
    """Its length is that of the series before padding."""
    trend: Trend


class TrendProgram:
    """`StructuralModel` as a NumPyro model that takes the kind of trend as data.

    Args:
        period: number of steps in a cycle of seasons; `None` for no seasons.
    """

    def __init__(self, period: int | None):
        self.model = StructuralModel(period)

    def __call__(self, data: SeriesWithTrend) -> None:
        self.model.sample_sites(*data)

    def pad(
        self, series: Float[np.ndarray, " t"], num_steps: int, kind: TrendKind
    ) -> SeriesWithTrend:
        """Adds missing values, to `num_steps` in all or more, and the numbers of a trend.

        The kinds are those of `slope` of `StructuralModel` and `"damped"`: the slope may change
        as much as a fast one, and decays to zero.
        """
        total = -(-num_steps // _STEPS) * _STEPS
        self.model.check_shape(jnp.asarray(series))
        padded = jnp.asarray(np.pad(series, (0, total - len(series)), constant_values=np.nan))
        scale = self.model.scale_of(padded)
        scale = scale._replace(length=jnp.full_like(scale.length, len(series)))
        # Without a slope the size does not matter, but it must be positive.
        size = 1.0 if kind in ("fast", "damped") else np.sqrt(3.0) / len(series)
        numbers = (float(kind != "none"), size, _DAMPING if kind == "damped" else 1.0)
        trend = Trend(*(jnp.asarray(number, padded.dtype) for number in numbers))
        return SeriesWithTrend(padded, scale, trend)


@partial(jax.jit, static_argnums=(0, 1))
def forecast_draws(
    model: StructuralModel,
    horizon: int,
    data: SeriesWithTrend,
    draws: dict[str, Float[Array, " k"]],
    trends: Trend,
) -> tuple[Float[Array, "k h"], Float[Array, "k h"]]:
    """Returns means and standard deviations of the next steps, for draws of the sites.

    The series has at least as many missing values at its end. Each draw has a trend of its own.
    """
    length = data.scale.length.astype(int)

    def one(inputs: tuple[dict[str, Array], Trend]) -> tuple[Array, Array]:
        values, trend = inputs
        process = model.process_of_scale(values, data.scale, trend)
        # At missing values the filter predicts.
        ahead = process.filter(data.values)
        cut = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, length, horizon)
        (loading,) = process.observation
        mean = cut(ahead.predicted_mean) @ loading
        variance = cut(ahead.predicted_covariance) @ loading @ loading
        return mean, jnp.sqrt(variance + process.observation_variance)

    return jax.lax.map(one, (draws, trends), batch_size=64)
