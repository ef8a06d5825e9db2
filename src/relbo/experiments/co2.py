"""Carbon dioxide at Mauna Loa, forecast (paper, section 5.2.2).

120 months from January 1966 are learned from and the next 24 are forecast, by a local linear
trend with seasons of twelve months.

`paper`: the scales are a point, trained for 10 epochs without refinement and 4 with one step
inside; the series is standardised with its whole length, test data too. Nothing has converged.

`sound`: in parts per million, scaled by the training window alone, the scales under priors and
integrated out; statsmodels' UnobservedComponents runs beside it. Since one window proves
little, both forecast 24 windows of 120 + 24 months, 14 months apart, across the whole series.
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

from relbo._progress import Done
from relbo.data import MonthlySeries, load_co2
from relbo.evaluate import AbstractRealForecast, NormalForecast, NormalMixtureForecast
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._co2_paper import run_paper
from relbo.experiments._co2_scores import AHEAD, FIRST_MONTH, PERIOD, TRAIN, by_metric, scores
from relbo.experiments._co2_story import STORY as STORY
from relbo.experiments._forecast_figures import Band, draw_fans, draw_rolling, draw_states
from relbo.experiments._importance import importance_draws
from relbo.experiments._points import Climber, Recipe
from relbo.experiments._posterior import posterior_draws
from relbo.experiments._run import settings_for
from relbo.experiments._scored import Scored, run_scored
from relbo.experiments._structural_peer import NOT_INSTALLED, is_installed, peer_forecast
from relbo.models import StructuralModel

SPACING = 14
"""Months from one window to the next."""
PEER = "statsmodels UnobservedComponents"
OURS = "posterior"
_RANDOM_WALK = "posterior, level a random walk"


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    num_windows: int
    num_draws: int
    with_exact: bool
    """Whether to sample the paper's window exactly as well."""
    with_random_walk: bool = True
    """Whether to forecast with the paper's local linear trend as well."""
    with_states: bool = True
    """Whether to draw level, slope and season."""
    num_weighed: int = 2_000
    """Draws that are weighed for those that are kept."""


FULL = Settings(10, 24, 500, True)
QUICK = Settings(3, 4, 200, False, with_random_walk=False, with_states=False, num_weighed=800)


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
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


def _num_rows(settings: Settings) -> dict[Protocol, int]:
    return {"paper": 2, "sound": 3 + settings.with_random_walk + settings.with_exact}


def window_origins(length: int, number: int) -> list[int]:
    """Where the windows begin, 14 months apart as far as the series reaches."""
    all_of_them = range(0, length - TRAIN - AHEAD + 1, SPACING)
    chosen = np.linspace(0, len(all_of_them) - 1, min(number, len(all_of_them)))
    return [all_of_them[round(index)] for index in chosen]


def _run_sound(
    directory: Path, settings: Settings, done: Done
) -> tuple[list[Scored], list[Path]]:
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
        others["posterior, sampled exactly by relbo.infer"] = lambda: model.forecast(
            posterior_draws(
                jr.key(5), model, (jnp.asarray(train),), num_draws=settings.num_draws
            ),
            jnp.asarray(train),
            AHEAD,
        )
    for row, make in others.items():
        begin = time.perf_counter()
        one = scores(make(), ahead)
        seconds = time.perf_counter() - begin
        done(row)
        scored.append(Scored(f"{row}, paper's window", by_metric([one]), "ppm", seconds, {}))
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
    whole: MonthlySeries, origins: list[int], settings: Settings, done: Done
) -> tuple[list[Scored], dict[str, list[AbstractRealForecast]]]:
    """Forecasts of every window by every method; the first one is the paper's."""
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
            scored.append(Scored(row, {"MAE": []}, NOT_INSTALLED, 0.0, {}))
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
            Scored(
                f"{row}, paper's window", by_metric(each[:1]), f"ppm; {estimator}", seconds, {}
            )
        )
        number = len(origins) - 1
        scored.append(
            Scored(
                f"{row}, rolling",
                by_metric(each[1:]),
                f"ppm; mean and standard error over {number} windows; {estimator}",
                seconds,
                {},
            )
        )
    return scored, forecasts


def _posterior_forecasts(
    whole: MonthlySeries, origins: list[int], model: StructuralModel, settings: Settings
) -> list[AbstractRealForecast]:
    series = jnp.asarray(np.stack([_window(whole, origin)[0] for origin in origins]))
    found = importance_draws(
        jr.key(4),
        model,
        series,
        num_draws=settings.num_draws,
        num_weighed=settings.num_weighed,
    )
    print(f"co2: the fewest effective draws of a window: {float(jnp.min(found.effective)):.0f}")

    @jax.jit
    def ahead(series: Array, draws: dict[str, Array]) -> tuple[Array, Array]:
        forecast = model.forecast(draws, series, AHEAD)
        return forecast.loc, forecast.scale

    forecasts = []
    for index, one in enumerate(series):
        draws = {name: values[index] for name, values in found.draws.items()}
        forecasts.append(NormalMixtureForecast(*ahead(one, draws)))
    return forecasts


def mode_forecast(model: StructuralModel, series: np.ndarray) -> NormalForecast:
    """The forecast at the mode of the posterior density of the parameters, no Jacobian."""
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

    fit = Climber(logdensity_fn, 500).fit(
        jax.tree.map(lambda leaf: leaf[None], start), Recipe(0, 0.05)
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
    """Level, slope and season of the paper's window at the middle of the posterior."""
    values = jnp.asarray(_window(whole, origin)[0])
    # The middle is all that is wanted of them.
    found = importance_draws(jr.key(4), model, values[None], num_draws=200, num_weighed=800)
    middle = {name: jnp.median(draws[0]) for name, draws in found.draws.items()}
    process = model.process(middle, values)
    moments = {"filtered": process.filter(values), "smoothed": process.smooth(values)}
    # Trend and what the level has not yet forgotten; slope in a year; the present season.
    rows = {
        "level (ppm)": np.array([1.0, 0, 1, *[0] * PERIOD]),
        "slope (ppm a year)": np.array([0, 12.0, 0, *[0] * PERIOD]),
        "season (ppm)": np.array([0, 0, 0, 1.0, *[0] * (PERIOD - 1)]),
    }
    bands = {}
    for title, row in rows.items():
        bands[title] = [
            Band(
                name,
                np.asarray(each.mean) @ row,
                np.sqrt(np.maximum(np.einsum("i,tij,j->t", row, each.covariance, row), 0)),
            )
            for name, each in moments.items()
        ]
    months = whole.months[origin : origin + TRAIN]
    return draw_states(directory / "sound_states", months, np.asarray(values), bands)
