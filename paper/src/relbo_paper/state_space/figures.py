"""Figures of forecasts of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relbo.evaluate import CategoricalForecast
from relbo_paper.harness.figures import VERMILION, new_figure, save_figure


def draw_symbol_forecasts(
    stem: Path,
    series: np.ndarray,
    num_train: int,
    forecasts: Mapping[str, CategoricalForecast],
) -> list[Path]:
    """Draws the probability of each symbol at each step, with the observed one circled."""
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
    figure.suptitle("Forecast probabilities; the observed symbols are circled", fontsize=10)
    return save_figure(figure, stem)
