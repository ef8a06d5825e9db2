"""Carbon dioxide at Mauna Loa, forecast (paper, section 5.2.2).

A local linear trend with seasons of twelve months is trained on the 120 months from January
1966 and forecasts the next 24.

`paper`: point estimates of the scales after 10 epochs without refinement and 4 with one step
inside the guide; the series is standardised over its whole length, test data included. Neither
has converged.

`sound`: in parts per million, scaled by the training window alone, with the scales integrated
out under priors, beside UnobservedComponents of statsmodels. Because one window proves little,
both forecast 24 windows of 120 + 24 months, 14 months apart, across the whole series.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree, Scalar
from numpyro.infer.util import log_density

from relbo import infer
from relbo.data import MonthlySeries, load_co2
from relbo.evaluate import AbstractRealForecast, NormalForecast, NormalMixtureForecast
from relbo.statespace import StructuralModel, importance_draws
from relbo_paper.co2.claims import CLAIMS as CLAIMS
from relbo_paper.co2.figures import StateBand, draw_fans, draw_rolling, draw_states
from relbo_paper.co2.paper_protocol import run_paper
from relbo_paper.co2.scores import AHEAD, FIRST_MONTH, PERIOD, TRAIN, by_metric, scores
from relbo_paper.co2.statsmodels_peer import NOT_INSTALLED, is_installed, peer_forecast
from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.point_fits import PointOptimiser, PointRecipe
from relbo_paper.harness.progress import Done
from relbo_paper.harness.protocols import ScoredRow, run_scored, settings_for

SPACING = 14
"""Months from one window to the next."""
PEER = "statsmodels UnobservedComponents"
OURS = "posterior"
_RANDOM_WALK = "posterior, level a random walk"


class CO2Settings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    num_windows: int
    num_draws: int
    with_exact: bool
    """Whether to sample the posterior of the paper's window with `relbo.infer` as well."""
    with_random_walk: bool = True
    """Whether to forecast with the paper's local linear trend as well."""
    with_states: bool = True
    """Whether to draw level, slope and season."""
    num_weighed: int = 2_000
    """Number of weighted draws from which `num_draws` are resampled."""


FULL = CO2Settings(10, 24, 500, True)
QUICK = CO2Settings(
    3, 4, 200, False, with_random_walk=False, with_states=False, num_weighed=800
)


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    return run_scored(
        "co2",
        directory,
        options,
        {
            "paper": lambda done: run_paper(directory, settings.num_seeds, done),
            "sound": lambda done: _run_sound(directory, settings, done),
        },
        _num_rows(settings),
    )


def _num_rows(settings: CO2Settings) -> dict[Protocol, int]:
    return {"paper": 2, "sound": 3 + settings.with_random_walk + settings.with_exact}


def window_origins(length: int, number: int) -> list[int]:
    """Returns the first index of each window, 14 months apart over the whole series."""
    possible = range(0, length - TRAIN - AHEAD + 1, SPACING)
    chosen = np.linspace(0, len(possible) - 1, min(number, len(possible)))
    return [possible[round(index)] for index in chosen]


def _run_sound(
    directory: Path, settings: CO2Settings, done: Done
) -> tuple[list[ScoredRow], list[Path]]:
    whole = load_co2()
    origin = int(np.searchsorted(whole.months, np.datetime64(FIRST_MONTH)))
    origins = window_origins(len(whole.values), settings.num_windows)
    scored, rolling = _rolling(whole, [origin, *origins], settings, done)
    train, ahead = _window(whole, origin)
    model = StructuralModel(PERIOD)
    others: dict[str, Callable[[], AbstractRealForecast]] = {
        "posterior mode (a Dirac guide)": lambda: mode_forecast(model, train)
    }
    if settings.with_exact:
        others["posterior, sampled exactly by relbo.infer"] = lambda: sampled_forecast(
            model, train, settings.num_draws
        )
    for row, make in others.items():
        begin = time.perf_counter()
        one = scores(make(), ahead)
        seconds = time.perf_counter() - begin
        done(row)
        scored.append(ScoredRow(f"{row}, paper's window", by_metric([one]), "ppm", seconds, {}))
    months = slice(origin, origin + TRAIN + AHEAD)
    fans = {name: forecasts[0] for name, forecasts in rolling.items() if name in (PEER, OURS)}
    figures = draw_fans(
        directory / "sound_fan",
        whole.months[months],
        whole.values[months],
        TRAIN,
        fans,
        "CO$_2$ (ppm)",
    )
    figures += _draw_rolling_scores(directory, whole, origins, rolling)
    if settings.with_states:
        figures += _draw_window_states(directory, whole, origin, model)
    return scored, figures


def _rolling(
    whole: MonthlySeries, origins: list[int], settings: CO2Settings, done: Done
) -> tuple[list[ScoredRow], dict[str, list[AbstractRealForecast]]]:
    """Forecasts every window with every method; the first window is the paper's."""
    rows: dict[str, tuple[Callable[[], list[AbstractRealForecast]], str]] = {
        OURS: (
            lambda: _posterior_forecasts(whole, origins, StructuralModel(PERIOD), settings),
            f"mixture over {settings.num_draws} draws, adaptive importance sampling",
        ),
        _RANDOM_WALK: (
            lambda: _posterior_forecasts(
                whole, origins, StructuralModel(PERIOD, forgetting=False), settings
            ),
            "the same with forgetting=False: the paper's local linear trend",
        ),
        PEER: (
            lambda: [peer_forecast(_window(whole, o)[0], PERIOD, AHEAD) for o in origins],
            "maximum likelihood",
        ),
    }
    if not settings.with_random_walk:
        del rows[_RANDOM_WALK]
    scored, forecasts = [], {}
    for row, (make, estimator) in rows.items():
        if row == PEER and not is_installed():
            done(f"{row}: {NOT_INSTALLED}")
            scored.append(ScoredRow(row, {"MAE": []}, NOT_INSTALLED, 0.0, {}))
            continue
        begin = time.perf_counter()
        forecasts[row] = make()
        each = [
            scores(forecast, _window(whole, o)[1])
            for forecast, o in zip(forecasts[row], origins, strict=True)
        ]
        seconds = time.perf_counter() - begin
        done(row)
        scored.append(
            ScoredRow(
                f"{row}, paper's window", by_metric(each[:1]), f"ppm; {estimator}", seconds, {}
            )
        )
        number = len(origins) - 1
        scored.append(
            ScoredRow(
                f"{row}, rolling",
                by_metric(each[1:]),
                f"ppm; mean and standard error over {number} windows; {estimator}",
                seconds,
                {},
            )
        )
    return scored, forecasts


def _posterior_forecasts(
    whole: MonthlySeries, origins: list[int], model: StructuralModel, settings: CO2Settings
) -> list[AbstractRealForecast]:
    numbers = {"num_draws": settings.num_draws, "num_weighed": settings.num_weighed}

    @jax.jit
    def ahead(series: Array, draws: dict[str, Array]) -> tuple[Array, Array]:
        forecast = model.forecast(draws, series, AHEAD)
        return forecast.loc, forecast.scale

    forecasts, effective = [], []
    for key, origin in zip(jr.split(jr.key(4), len(origins)), origins, strict=True):
        series = jnp.asarray(_window(whole, origin)[0])
        found = importance_draws(key, model, series, **numbers)
        effective.append(found.evidence.ess or 0.0)
        forecasts.append(NormalMixtureForecast(*ahead(series, found.draws)))
    print(f"co2: smallest effective sample size of a window: {min(effective):.0f}")
    return forecasts


def sampled_forecast(
    model: StructuralModel, series: np.ndarray, num_draws: int
) -> NormalMixtureForecast:
    """Forecasts with draws of `relbo.infer`."""
    values = jnp.asarray(series)
    posterior = infer(jr.key(5), model, (values,), num_draws=num_draws, progress=False)
    draws = {name: jnp.asarray(draw) for name, draw in posterior.draws.items()}
    return model.forecast(draws, values, AHEAD)


def mode_forecast(model: StructuralModel, series: np.ndarray) -> NormalForecast:
    """Forecasts at the mode of the posterior density of the constrained parameters."""
    values = jnp.asarray(series)
    unit = model.scale_of(values).unit
    start = {
        "observation_scale": jnp.log(unit / 4.0),
        "level_scale": jnp.log(unit / 4.0),
        "slope_scale": jnp.log(unit / 500.0),
        "seasonal_scale": jnp.log(unit / 20.0),
        "level_memory": jnp.log(jnp.asarray(len(series) / 3.0)),
    }

    def logdensity_fn(logs: PyTree) -> Scalar:
        parameters = {name: jnp.exp(value) for name, value in logs.items()}
        return jnp.asarray(log_density(model, (values,), {}, parameters)[0])

    fit = PointOptimiser(logdensity_fn, 500).fit(
        jax.tree.map(lambda leaf: leaf[None], start), PointRecipe(0, 0.05)
    )
    mode = {name: jnp.exp(value[0]) for name, value in fit.positions.items()}
    return model.process(mode, values).forecast(values, AHEAD)


def _window(whole: MonthlySeries, origin: int) -> tuple[np.ndarray, np.ndarray]:
    end = origin + TRAIN
    return whole.values[origin:end], whole.values[end : end + AHEAD]


def _draw_rolling_scores(
    directory: Path,
    whole: MonthlySeries,
    origins: list[int],
    rolling: dict[str, list[AbstractRealForecast]],
) -> list[Path]:
    shown = ("MAE", "interval score", "log score", "coverage")
    rows = {}
    for row in (PEER, OURS):
        if row not in rolling:
            continue
        each = [
            scores(forecast, _window(whole, origin)[1])
            for forecast, origin in zip(rolling[row][1:], origins, strict=True)
        ]
        rows[row] = {metric: np.array([one[metric] for one in each]) for metric in shown}
    months = whole.months[np.array(origins) + TRAIN]
    return draw_rolling(directory / "sound_rolling", months, rows)


def _draw_window_states(
    directory: Path, whole: MonthlySeries, origin: int, model: StructuralModel
) -> list[Path]:
    """Draws level, slope and season of the paper's window at the posterior median."""
    values = jnp.asarray(_window(whole, origin)[0])
    # Few draws are enough for a median.
    found = importance_draws(jr.key(4), model, values, num_draws=200, num_weighed=800)
    middle = {name: jnp.median(draws) for name, draws in found.draws.items()}
    process = model.process(middle, values)
    moments = {"filtered": process.filter(values), "smoothed": process.smooth(values)}
    # The level is the trend plus its mean-reverting part; the slope is per year.
    rows = {
        "level (ppm)": np.array([1.0, 0, 1, *[0] * PERIOD]),
        "slope (ppm per year)": np.array([0, 12.0, 0, *[0] * PERIOD]),
        "season (ppm)": np.array([0, 0, 0, 1.0, *[0] * (PERIOD - 1)]),
    }
    bands = {}
    for title, row in rows.items():
        bands[title] = [
            StateBand(
                name,
                np.asarray(each.mean) @ row,
                np.sqrt(np.maximum(np.einsum("i,tij,j->t", row, each.covariance, row), 0)),
            )
            for name, each in moments.items()
        ]
    months = whole.months[origin : origin + TRAIN]
    return draw_states(directory / "sound_states", months, np.asarray(values), bands)
