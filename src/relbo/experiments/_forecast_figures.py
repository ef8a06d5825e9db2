"""Figures of forecasts: fans of intervals, states, and probabilities of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relbo.evaluate import AbstractRealForecast, CategoricalForecast, central_interval
from relbo.experiments._figures import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILION,
    new_figure,
    save_figure,
)


class Band(NamedTuple):
    """A series of numbers known to plus or minus two standard deviations."""

    name: str
    mean: np.ndarray
    scale: np.ndarray


def draw_symbol_forecasts(
    stem: Path,
    series: np.ndarray,
    num_train: int,
    forecasts: Mapping[str, CategoricalForecast],
) -> list[Path]:
    """The probability of each symbol at each step, what came ringed."""
    figure = new_figure(3.3 * len(forecasts), 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(forecasts), sharey=True))
    ahead = np.arange(num_train, len(series))
    image, num_symbols = None, 0
    for axes, (name, forecast) in zip(panels, forecasts.items(), strict=True):
        probabilities = np.exp(np.asarray(forecast.log_probs)).T
        num_symbols = len(probabilities)
        image = axes.pcolormesh(
            ahead, np.arange(num_symbols), probabilities, vmin=0, vmax=1, cmap="Blues"
        )
        axes.plot(ahead, series[num_train:], "o", ms=11, mfc="none", mec=VERMILION, mew=1.8)
        axes.set_title(name.replace(", ", ",\n", 1), fontsize=9)
        axes.set_xlabel("step")
        axes.set_xticks(ahead)
    panels[0].set_ylabel("symbol")
    panels[0].set_yticks(range(num_symbols))
    if image is not None:
        figure.colorbar(image, ax=panels, label="predictive probability", shrink=0.85)
    figure.suptitle("What is forecast; what came is ringed", fontsize=10)
    return save_figure(figure, stem)


def draw_fans(
    stem: Path,
    months: np.ndarray,
    values: np.ndarray,
    num_train: int,
    forecasts: Mapping[str, AbstractRealForecast],
    unit: str,
) -> list[Path]:
    """The end of the training series, the medians and the central intervals ahead."""
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
    figure.legend(
        handles=panels[0].get_legend_handles_labels()[0],
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    return save_figure(figure, stem)


def draw_states(
    stem: Path, months: np.ndarray, values: np.ndarray, bands: Mapping[str, list[Band]]
) -> list[Path]:
    """One panel a component of the state: filtered and smoothed, two standard deviations."""
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
        # The first steps know next to nothing; their width would hide the rest.
        settled = np.concatenate([b.mean[13:] for b in drawn])
        margin = 0.25 * np.ptp(settled) + 4 * float(np.median(drawn[-1].scale))
        axes.set_ylim(settled.min() - margin, settled.max() + margin)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].plot(months, values, ".", color=BLACK, ms=3, label="observed")
    figure.legend(
        handles=panels[0].get_legend_handles_labels()[0],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return save_figure(figure, stem)


def draw_rolling(
    stem: Path, months: np.ndarray, rows: Mapping[str, Mapping[str, np.ndarray]]
) -> list[Path]:
    """One panel a score, one line a method, over the windows' origins."""
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
    figure.legend(
        handles=panels[0].get_legend_handles_labels()[0],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return save_figure(figure, stem)
