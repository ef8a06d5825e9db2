"""Loss curves: the mean over seeds dark, each seed light."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relbo.experiments._figures import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    new_figure,
    save_figure,
)

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE)


class LossCurve(NamedTuple):
    name: str
    losses: np.ndarray
    """`[seeds, iterations]`."""
    seconds_per_iteration: float
    gradients_per_iteration: int


def draw_curves(stem: Path, curves: Sequence[LossCurve], label: str, title: str) -> list[Path]:
    """Against iterations, gradients and seconds: three prices of the same thing."""
    figure = new_figure(10.5, 3.9)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, price in zip(panels, ("iterations", "gradients", "milliseconds"), strict=True):
        ends = []
        for curve, colour in zip(curves, COLOURS, strict=False):
            unit = {
                "iterations": 1.0,
                "gradients": curve.gradients_per_iteration,
                "milliseconds": 1e3 * curve.seconds_per_iteration,
            }[price]
            paid = np.arange(curve.losses.shape[1]) * unit
            ends.append(paid[-1])
            losses = _finite(curve.losses)
            axes.plot(paid, losses.T, color=colour, alpha=0.15, lw=0.7)
            axes.plot(paid, losses.mean(axis=0), color=colour, lw=2.0, label=curve.name)
        # As far as the cheapest of them goes: beyond it there is nothing to compare.
        axes.set_xlim(0, min(ends))
        axes.set_xlabel(price)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(label)
    panels[0].set_ylim(*_limits(curves))
    figure.suptitle(title, fontsize=10)
    handles = panels[0].get_legend_handles_labels()[0]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False
    )
    return save_figure(figure, stem)


def _finite(losses: np.ndarray) -> np.ndarray:
    """A curve that ran away is not drawn from there on, nor is a mean with it."""
    return np.where(np.isfinite(losses), losses, np.nan)


def _limits(curves: Sequence[LossCurve]) -> tuple[float, float]:
    means = np.concatenate([_finite(curve.losses).mean(axis=0) for curve in curves])
    low = min(float(np.nanmin(_finite(curve.losses))) for curve in curves)
    # The first iterations reach far up; what matters is where the curves go.
    high = float(np.nanquantile(means, 0.9))
    return low - 0.05 * (high - low), high + 0.25 * (high - low)
