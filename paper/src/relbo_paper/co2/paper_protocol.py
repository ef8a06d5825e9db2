"""The paper's forecast of carbon dioxide: point estimates that have not yet converged."""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo.data import MonthlySeries, load_co2
from relbo.evaluate import NormalForecast
from relbo.statespace import LinearGaussian, dlm, local_linear_trend, seasonal
from relbo_paper.co2.claims import PAPER_UNIT
from relbo_paper.co2.figures import draw_fans
from relbo_paper.co2.scores import AHEAD, FIRST_MONTH, PERIOD, TRAIN, by_metric, scores
from relbo_paper.harness.point_fits import PointOptimiser, PointRecipe
from relbo_paper.harness.progress import Done
from relbo_paper.harness.protocols import ScoredRow

PAPER = {
    "T=0": {"MAE": 0.270, "predictive entropy": 2.537, "interval score": 15.247},
    "T=1": {"MAE": 0.239, "predictive entropy": 2.401, "interval score": 13.461},
}
PAPER_EPOCHS = {0: 10, 1: 4}


class StandardisedWindow(NamedTuple):
    """The paper's window in units of the standard deviation of the whole series."""

    train: np.ndarray
    ahead: np.ndarray
    unit: float
    """In ppm."""


def standardise(series: MonthlySeries) -> StandardisedWindow:
    """Standardises as the paper does, with the mean and deviation of the test data too."""
    values = series.values
    unit = float(np.std(values))
    scaled = (values - np.mean(values)) / unit
    return StandardisedWindow(scaled[:TRAIN], scaled[TRAIN : TRAIN + AHEAD], unit)


def paper_process(log_scales: dict[str, Array]) -> LinearGaussian:
    """Returns a local linear trend with twelve seasons and an initial scale of one unit."""
    scales = {name: jnp.exp(value) for name, value in log_scales.items()}
    return dlm(
        local_linear_trend(scales["level"], scales["slope"], initial_scale=(1.0, 1.0)),
        seasonal(PERIOD, scales["seasonal"], initial_scale=1.0),
        observation_scale=scales["observation"],
    )


def draw_log_scales(key: PRNGKeyArray) -> dict[str, Array]:
    """Draws initial log scales near zero: scales of about one unit."""
    names = ("observation", "level", "slope", "seasonal")
    return {name: 0.1 * jr.normal(k) for name, k in zip(names, jr.split(key, 4), strict=True)}


def run_paper(
    directory: Path, num_seeds: int, done: Done
) -> tuple[list[ScoredRow], list[Path]]:
    """Returns the scores of both rows, and draws their forecasts."""
    series = load_co2().since(FIRST_MONTH)
    window = standardise(series)
    starts = jax.vmap(draw_log_scales)(jr.split(jr.key(0), num_seeds))

    train = jnp.asarray(window.train)

    def logdensity_fn(log_scales: PyTree) -> Scalar:
        return paper_process(log_scales).log_likelihood(train)

    @jax.jit
    def forecast(log_scales: PyTree) -> NormalForecast:
        return paper_process(log_scales).forecast(train, AHEAD)

    scored, fans = [], {}
    for recipe in (PointRecipe(0, 0.05), PointRecipe(1, 0.05, 1e-3)):
        begin = time.perf_counter()
        epochs = PAPER_EPOCHS[recipe.num_steps]
        fit = PointOptimiser(logdensity_fn, epochs).fit(starts, recipe)
        forecasts = [
            forecast({name: leaf[seed] for name, leaf in fit.positions.items()})
            for seed in range(num_seeds)
        ]
        row = f"{recipe.name}, {epochs} epochs"
        by_seed = [_scores_in_paper_units(each, window) for each in forecasts]
        scored.append(
            ScoredRow(
                row,
                by_metric(by_seed),
                f"in units of {PAPER_UNIT} ppm; Adam 0.05, the step size and the initial "
                "scales of one are our choice, the paper gives none",
                time.perf_counter() - begin,
                PAPER[f"T={recipe.num_steps}"],
            )
        )
        done(row)
        centre = float(np.mean(series.values))
        fans[row] = _in_ppm(forecasts[0], window.unit, centre)
    shown = series.months[: TRAIN + AHEAD], series.values[: TRAIN + AHEAD]
    return scored, draw_fans(directory / "paper_fan", *shown, TRAIN, fans, "CO$_2$ (ppm)")


def _scores_in_paper_units(
    forecast: NormalForecast, window: StandardisedWindow
) -> dict[str, float]:
    factor = window.unit / PAPER_UNIT
    there = NormalForecast(forecast.loc * factor, forecast.scale * factor)
    return scores(there, window.ahead * factor)


def _in_ppm(forecast: NormalForecast, unit: float, centre: float) -> NormalForecast:
    return NormalForecast(forecast.loc * unit + centre, forecast.scale * unit)
