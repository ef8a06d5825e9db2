"""Figures of the carbon dioxide forecasts: intervals, states and scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relbo.evaluate import AbstractRealForecast, central_interval
from relbo_paper.harness.figures import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILION,
    add_legend_below,
    new_figure,
    save_figure,
)


class StateBand(NamedTuple):
    """The mean and the standard deviation of a state over time."""

    name: str
    mean: np.ndarray
    scale: np.ndarray


def draw_fans(
    stem: Path,
    months: np.ndarray,
    values: np.ndarray,
    num_train: int,
    forecasts: Mapping[str, AbstractRealForecast],
    unit: str,
) -> list[Path]:
    """Draws the end of the training series, and forecast medians and central intervals."""
    figure = new_figure(10.0, 4.2)
    panels = np.atleast_1d(figure.subplots(1, len(forecasts), sharey=True))
    shown = slice(num_train - 36, len(values))
    for axes, (name, forecast) in zip(panels, forecasts.items(), strict=True):
        ahead = months[num_train:]
        for alpha, shade in ((0.05, 0.18), (0.5, 0.32)):
            lower, upper = (np.asarray(end) for end in central_interval(forecast, alpha=alpha))
            label = f"{100 * (1 - alpha):.0f} % interval"
            axes.fill_between(ahead, lower, upper, color=BLUE, alpha=shade, lw=0, label=label)
        axes.plot(ahead, np.asarray(forecast.quantile(0.5)), color=BLUE, lw=1.6, label="median")
        axes.plot(months[shown], values[shown], ".", color=BLACK, ms=4, label="observed")
        axes.axvline(months[num_train], color="#888888", lw=0.8, ls=":")
        axes.set_title(name, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(unit)
    add_legend_below(figure, panels[0])
    return save_figure(figure, stem)


def draw_states(
    stem: Path, months: np.ndarray, values: np.ndarray, bands: Mapping[str, list[StateBand]]
) -> list[Path]:
    """Draws each component of the state, filtered and smoothed, with two sd on each side."""
    figure = new_figure(8.0, 2.1 * len(bands) + 0.8)
    panels = np.atleast_1d(figure.subplots(len(bands), 1, sharex=True))
    for axes, (title, drawn) in zip(panels, bands.items(), strict=True):
        for band, colour in zip(drawn, (ORANGE, BLUE), strict=False):
            axes.fill_between(
                months,
                band.mean - 2 * band.scale,
                band.mean + 2 * band.scale,
                color=colour,
                alpha=0.25,
                lw=0,
            )
            axes.plot(months, band.mean, color=colour, lw=1.4, label=band.name)
        axes.set_ylabel(title)
        # Ignores the first steps, whose wide intervals would hide the rest.
        settled = np.concatenate([b.mean[13:] for b in drawn])
        margin = 0.25 * np.ptp(settled) + 4 * float(np.median(drawn[-1].scale))
        axes.set_ylim(settled.min() - margin, settled.max() + margin)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].plot(months, values, ".", color=BLACK, ms=3, label="observed")
    add_legend_below(figure, panels[0])
    return save_figure(figure, stem)


def draw_rolling(
    stem: Path, months: np.ndarray, rows: Mapping[str, Mapping[str, np.ndarray]]
) -> list[Path]:
    """Draws one panel per score and one line per method, over the first forecast months."""
    metrics = list(next(iter(rows.values())))
    figure = new_figure(9.0, 2.0 * len(metrics) + 0.6)
    panels = np.atleast_1d(figure.subplots(len(metrics), 1, sharex=True))
    for axes, metric in zip(panels, metrics, strict=True):
        for (name, scores), colour, marker in zip(
            rows.items(), (VERMILION, BLUE, ORANGE), "os^", strict=False
        ):
            mean = float(np.mean(scores[metric]))
            axes.plot(months, scores[metric], marker, color=colour, ms=4, label=name)
            axes.axhline(mean, color=colour, lw=1.0, ls="--")
        axes.set_ylabel(metric)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("first month of the forecast (dashed: mean over windows)")
    add_legend_below(figure, panels[0])
    return save_figure(figure, stem)
