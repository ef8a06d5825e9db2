"""A structural model of a series: trend, seasons, covariates, and priors in its scale."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, ArrayLike, Float

from relbo.core.checks import check_choice, check_integer, check_shape
from relbo.core.parameters import is_traced
from relbo.evaluate.forecasts import NormalMixtureForecast
from relbo.problem.arrays import DataLike, as_array
from relbo.statespace.distributions import LinearGaussianSeries
from relbo.statespace.dlm import (
    autoregression,
    dlm,
    local_level,
    local_linear_trend,
    regression,
    seasonal,
)
from relbo.statespace.linear_gaussian import LinearGaussian
from relbo.statespace.observations import check_length
from relbo.statespace.scale_prior import NormalScale

Slope = Literal["slow", "fast", "none"]


class SeriesScale(NamedTuple):
    """The scale of the priors, computed from the observed part of a series."""

    level: Array
    """The mean of the first two cycles of seasons."""
    spread: Array
    """The standard deviation of the series."""
    length: Array
    """The number of steps."""
    unit: Array
    """The root mean square of the changes from step to step, less the changes one cycle before:
    what a constant trend and constant seasons do not explain."""


class Trend(NamedTuple):
    """The kind of a trend in numbers, so that one compiled program serves all kinds."""

    has_slope: ArrayLike
    """One, or zero for a constant level."""
    slope_size: ArrayLike
    """The prior scale of the changes of the slope, in units of that of the level."""
    damping: ArrayLike
    """The share of the slope that is left after a step."""


class StructuralModel:
    r"""A NumPyro model of a series: trend, seasons, covariates and noise.

    $$x_t = \mu_t + a_t + \gamma_t + N(0, s_{obs}), \qquad
      \mu_{t+1} = \mu_t + \delta_t, \quad \delta_{t+1} = \delta_t + N(0, s_{slope}), \qquad
      a_{t+1} = e^{-1/\tau} a_t + N(0, s_{level})$$

    and seasons $\gamma$ that cycle. Deviations a of the level decay within about tau steps; for
    large tau this is the paper's local linear trend, which `forgetting=False` selects. The path
    of the state is integrated out by the Kalman filter. The sites are `observation_scale`,
    `level_scale`, `slope_scale`, `seasonal_scale` and `level_memory`, and the observed
    `series`.

    The priors depend on the scale of the series. Let n be its length and u the root mean square
    of $\Delta \Delta_p x$, whose square under the model is about $4 s_{obs}^2 + 2 s_{level}^2 +
    2 s_{seasonal}^2$ plus a contribution of the slope. The four scales have half-normal priors.
    That of the noise, $u/4$, and that of the level, $u/\sqrt8$, would each explain a quarter of
    $u^2$. Slopes and seasons change more slowly: the prior scale of the slope is $\sqrt3/n$
    times that of the level, with which it moves the series from end to end as much as a random
    walk of the level does. That of a season, which changes once in p steps, is $1/\sqrt p$
    times that of the level. The memory is log-normal around $n/3$ within a factor of e, because
    a series cannot distinguish a longer memory from a random walk. In unconstrained space all
    priors are normal.

    Args:
        period: p, the number of steps in a cycle of seasons; `None` for no seasons.
        covariates: `[t, k]`, including the steps of a forecast.
        forgetting: whether deviations of the level decay over time.
        slope: `"slow"`, `"fast"` if the slope may change as much as the level does (the prior
            scales are then equal), or `"none"` for no trend.

    Example:
        >>> import jax, relbo
        >>> from relbo.data import load_co2
        >>> model = StructuralModel(period=12)
        >>> series = load_co2().values[:120]
        >>> draws = relbo.infer(jax.random.key(0), model, (series,)).draws
        >>> forecast = model.forecast(draws, series, 24)
    """

    def __init__(
        self,
        period: int | None = None,
        covariates: DataLike | None = None,
        *,
        forgetting: bool = True,
        slope: Slope = "slow",
    ):
        check_integer("period", period, 2, optional=True)
        self.period = period
        check_choice("slope", slope, get_args(Slope))
        if covariates is not None:
            covariates = jnp.asarray(as_array("covariates", covariates))
        self.covariates = covariates
        self.forgetting = forgetting
        self.slope = slope

    def __call__(self, series: DataLike) -> None:
        series = jnp.asarray(as_array("series", series))
        self.sample_sites(series, self.scale_of(series))

    def sample_sites(
        self, series: Array, scale: SeriesScale, trend: Trend | None = None
    ) -> None:
        """Runs the model at a known scale of the series.

        Args:
            series: the observed series.
            scale: its scale.
            trend: replaces the kind of trend of a model that has a slope.
        """
        priors = self.priors(scale, trend)
        values = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        process = self.process_of_scale(values, scale, trend)
        numpyro.sample("series", LinearGaussianSeries(process, len(series)), obs=series)

    def scale_of(self, series: DataLike) -> SeriesScale:
        """Returns the scale of the priors.

        Raises:
            ValueError: if the series is constant, all missing or too short.
        """
        series = jnp.asarray(as_array("series", series))
        self.check_shape(series)
        cycle = self.period or 1
        # In JAX's precision, like everything else.
        values = series.astype(jnp.result_type(float))
        first = values[: max(2 * cycle, 4)]
        changes = jnp.diff(values)
        if self.period is not None:
            changes = changes[cycle:] - changes[:-cycle]
        centre = jnp.nanmean(values)
        spread = jnp.nanstd(values)
        unit = jnp.sqrt(jnp.nanmean(changes**2))
        # In a series without noise no changes are left; use a fraction of its spread instead.
        unit = jnp.maximum(jnp.where(jnp.isnan(unit), spread, unit), 1e-3 * spread)
        level = jnp.nanmean(first)
        if not is_traced(spread):
            _check_spread(values, np.asarray(spread))
        length = jnp.full((), len(series), values.dtype)
        return SeriesScale(jnp.where(jnp.isnan(level), centre, level), spread, length, unit)

    def check_shape(self, series: Array) -> None:
        """Raises `ValueError` if a series is too short or has several columns."""
        check_length(series)
        check_shape("series", series, "t")
        cycle = self.period or 1
        if len(series) < cycle + 3:
            raise ValueError(
                f"series: expected at least {cycle + 3} steps for a period of {cycle}, got "
                f"{len(series)}"
            )

    def process(self, values: Mapping[str, ArrayLike], series: DataLike) -> LinearGaussian:
        """Returns the state-space model at given values of the sites."""
        return self.process_of_scale(values, self.scale_of(series))

    def forecast(
        self, draws: Mapping[str, ArrayLike], series: DataLike, num_steps: int
    ) -> NormalMixtureForecast:
        """Returns the predictive distribution of each of the next steps, a mixture over draws.

        Args:
            draws: posterior draws by site, along a leading axis.
            series: the observed series.
            num_steps: number of steps ahead.
        """
        scale = self.scale_of(series)
        series = jnp.asarray(as_array("series", series))
        used = {name: jnp.asarray(draws[name]) for name in self.priors(scale)}
        return NormalMixtureForecast(*_forecast(self, num_steps, used, series, scale))

    def priors(
        self, scale: SeriesScale, trend: Trend | None = None
    ) -> dict[str, dist.Distribution]:
        """Returns the priors by site; see `sample_sites` for the arguments."""
        level = scale.unit / math.sqrt(8.0)
        priors: dict[str, dist.Distribution] = {
            "observation_scale": NormalScale(scale.unit / 4.0),
            "level_scale": NormalScale(level),
        }
        if self.slope != "none":
            trend = trend or self._trend(scale)
            priors["slope_scale"] = NormalScale(level * trend.slope_size)
        if self.period is not None:
            priors["seasonal_scale"] = NormalScale(level / math.sqrt(self.period))
        if self.forgetting:
            priors["level_memory"] = dist.LogNormal(jnp.log(scale.length / 3.0), 1.0)
        return priors

    def _trend(self, scale: SeriesScale) -> Trend:
        is_slow = self.slope == "slow"
        return Trend(1.0, math.sqrt(3.0) / scale.length if is_slow else 1.0, 1.0)

    def process_of_scale(
        self, values: Mapping[str, ArrayLike], scale: SeriesScale, trend: Trend | None = None
    ) -> LinearGaussian:
        """Returns the state-space model at given values of the sites, as `process` does."""
        trend = trend or self._trend(scale)
        zero = jnp.zeros_like(scale.level)
        moved = values["level_scale"]
        walk, wide = zero if self.forgetting else moved, 2.0 * scale.spread
        first_slope = trend.has_slope / (self.period or 4)
        blocks = [
            local_linear_trend(
                walk,
                trend.has_slope * values["slope_scale"],
                damping=trend.damping,
                initial_mean=jnp.stack([scale.level, zero]),
                initial_scale=wide * jnp.stack([zero + 1.0, zero + first_slope]),
            )
            if self.slope != "none"
            else local_level(walk, initial_mean=scale.level, initial_scale=wide)
        ]
        if self.forgetting:
            memory = jnp.asarray(values["level_memory"])
            blocks.append(autoregression(jnp.exp(-1.0 / memory), moved))
        if self.period is not None:
            season = values["seasonal_scale"]
            blocks.append(seasonal(self.period, season, initial_scale=wide))
        if self.covariates is not None:
            size = jnp.nanstd(self.covariates)
            coefficient = wide / jnp.where(size > 0, size, 1.0)
            blocks.append(regression(self.covariates, initial_scale=coefficient))
        return dlm(*blocks, observation_scale=values["observation_scale"])


# With the model as a static argument, further series of the same length share the program.
@partial(jax.jit, static_argnums=(0, 1))
def _forecast(
    model: StructuralModel,
    num_steps: int,
    draws: dict[str, Array],
    series: Array,
    scale: SeriesScale,
) -> tuple[Array, Array]:
    def one(draw: dict[str, Array]) -> tuple[Array, Array]:
        normal = model.process_of_scale(draw, scale).forecast(series, num_steps)
        return normal.loc, normal.scale

    return jax.lax.map(one, draws, batch_size=64)


def _check_spread(series: Float[Array, " t"], spread: np.ndarray) -> None:
    if np.isnan(spread):
        raise ValueError("series: expected some observed values, got only NaN")
    if spread == 0:
        raise ValueError(
            f"series: expected values that differ, got the constant {np.nanmax(series)}"
        )
