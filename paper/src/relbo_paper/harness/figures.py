"""The style of the figures, and the loss curves that several experiments draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which is safe for colour-blind readers.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
_CURVE_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE)


def new_figure(width: float, height: float) -> Figure:
    """Creates a figure without pyplot, which needs no display and no global state.

    matplotlib is imported here because most commands draw nothing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem.png` and `stem.svg`."""
    import matplotlib

    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    # With fixed identifiers and no date, the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "relbo"}):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], dpi=150, metadata={"Date": None})
    return paths


def add_legend_below(figure: Figure, axes: Any, **options: Any) -> None:
    """Puts the legend of `axes` below all panels, where no curve crosses it."""
    handles = axes.get_legend_handles_labels()[0]
    options = {"ncols": len(handles), **options}
    figure.legend(handles=handles, loc="outside lower center", frameon=False, **options)


class LossCurve(NamedTuple):
    """The losses of one method, and the cost of an iteration."""

    name: str
    losses: np.ndarray
    """`[seeds, iterations]`."""
    seconds_per_iteration: float
    gradients_per_iteration: int


def draw_loss_curves(
    stem: Path, curves: Sequence[LossCurve], label: str, title: str
) -> list[Path]:
    """Draws losses against iterations, gradients and time; means dark, seeds light."""
    figure = new_figure(10.5, 3.9)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, unit in zip(panels, ("iterations", "gradients", "milliseconds"), strict=True):
        ends = []
        for curve, colour in zip(curves, _CURVE_COLOURS, strict=False):
            per_iteration = {
                "iterations": 1.0,
                "gradients": curve.gradients_per_iteration,
                "milliseconds": 1e3 * curve.seconds_per_iteration,
            }[unit]
            cost = np.arange(curve.losses.shape[1]) * per_iteration
            ends.append(cost[-1])
            losses = _finite(curve.losses)
            axes.plot(cost, losses.T, color=colour, alpha=0.15, lw=0.7)
            axes.plot(cost, losses.mean(axis=0), color=colour, lw=2.0, label=curve.name)
        # Stops where the cheapest curve ends: beyond it there is nothing to compare.
        axes.set_xlim(0, min(ends))
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(label)
    panels[0].set_ylim(*_loss_limits(curves))
    figure.suptitle(title, fontsize=10)
    add_legend_below(figure, panels[0])
    return save_figure(figure, stem)


def _finite(losses: np.ndarray) -> np.ndarray:
    """Replaces infinite losses by NaN, which is not drawn."""
    return np.where(np.isfinite(losses), losses, np.nan)


def _loss_limits(curves: Sequence[LossCurve]) -> tuple[float, float]:
    means = np.concatenate([_finite(curve.losses).mean(axis=0) for curve in curves])
    low = min(float(np.nanmin(_finite(curve.losses))) for curve in curves)
    # Cuts off the large losses of the first iterations.
    high = float(np.nanquantile(means, 0.9))
    return low - 0.05 * (high - low), high + 0.25 * (high - low)
