"""Carbon dioxide as the paper forecasts it: scales that are a point, and not yet converged."""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo._progress import Done
from relbo.data import MonthlySeries, load_co2
from relbo.evaluate import NormalForecast
from relbo.experiments._co2_scores import AHEAD, FIRST_MONTH, PERIOD, TRAIN, by_metric, scores
from relbo.experiments._co2_story import PAPER_UNIT
from relbo.experiments._forecast_figures import draw_fans
from relbo.experiments._points import Climber, Recipe
from relbo.experiments._scored import Scored
from relbo.models import LinearGaussian, dlm, local_linear_trend, seasonal

PAPER = {
    "T=0": {"MAE": 0.270, "predictive entropy": 2.537, "interval score": 15.247},
    "T=1": {"MAE": 0.239, "predictive entropy": 2.401, "interval score": 13.461},
}
PAPER_EPOCHS = {0: 10, 1: 4}


class Standardised(NamedTuple):
    """The paper's window in units of the standard deviation of the whole series."""

    train: np.ndarray
    ahead: np.ndarray
    unit: float
    """In ppm."""


def standardise(series: MonthlySeries) -> Standardised:
    """As the paper does it: with the mean and the deviation of test data too."""
    values = series.values
    unit = float(np.std(values))
    scaled = (values - np.mean(values)) / unit
    return Standardised(scaled[:TRAIN], scaled[TRAIN : TRAIN + AHEAD], unit)


def paper_process(log_scales: dict[str, Array]) -> LinearGaussian:
    """Local linear trend and twelve seasons; every state starts within a unit or so."""
    scales = {name: jnp.exp(value) for name, value in log_scales.items()}
    return dlm(
        local_linear_trend(scales["level"], scales["slope"], initial_scale=(1.0, 1.0)),
        seasonal(PERIOD, scales["seasonal"], initial_scale=1.0),
        observation_scale=scales["observation"],
    )


def draw_log_scales(key: PRNGKeyArray) -> dict[str, Array]:
    """Where a seed starts: scales of about one, the deviation of the whole series."""
    names = ("observation", "level", "slope", "seasonal")
    return {name: 0.1 * jr.normal(k) for name, k in zip(names, jr.split(key, 4), strict=True)}


def run_paper(directory: Path, num_seeds: int, done: Done) -> tuple[list[Scored], list[Path]]:
    """The scores of both rows, and their forecasts as a figure."""
    series = load_co2().since(FIRST_MONTH)
    window = standardise(series)
    starts = jax.vmap(draw_log_scales)(jr.split(jr.key(0), num_seeds))

    train = jnp.asarray(window.train)

    def logdensity_fn(log_scales: PyTree) -> Scalar:
        return paper_process(log_scales).log_likelihood(train)

    scored, fans = [], {}
    for recipe in (Recipe(0, 0.05), Recipe(1, 0.05, 1e-3)):
        begin = time.perf_counter()
        epochs = PAPER_EPOCHS[recipe.num_steps]
        fit = Climber(logdensity_fn, epochs).fit(starts, recipe)
        forecasts = [
            paper_process({n: leaf[seed] for n, leaf in fit.positions.items()}).forecast(
                train, AHEAD
            )
            for seed in range(num_seeds)
        ]
        row = f"{recipe.name}, {epochs} epochs"
        by_seed = [_in_units_of_the_paper(each, window) for each in forecasts]
        scored.append(
            Scored(
                row,
                by_metric(by_seed),
                f"in units of {PAPER_UNIT} ppm; Adam 0.05, the steps' size and the start at "
                "scales of one are ours, the paper gives none",
                time.perf_counter() - begin,
                PAPER[f"T={recipe.num_steps}"],
            )
        )
        done(row)
        centre = float(np.mean(series.values))
        fans[row] = _in_ppm(forecasts[0], window.unit, centre)
    shown = series.months[: TRAIN + AHEAD], series.values[: TRAIN + AHEAD]
    return scored, draw_fans(directory / "paper_fan", *shown, TRAIN, fans, "CO$_2$ (ppm)")


def _in_units_of_the_paper(forecast: NormalForecast, window: Standardised) -> dict[str, float]:
    factor = window.unit / PAPER_UNIT
    there = NormalForecast(forecast.loc * factor, forecast.scale * factor)
    return scores(there, window.ahead * factor)


def _in_ppm(forecast: NormalForecast, unit: float, centre: float) -> NormalForecast:
    return NormalForecast(forecast.loc * unit + centre, forecast.scale * unit)
