"""Figures of the tuning experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relbo_paper.harness.figures import (
    BLUE,
    ORANGE,
    VERMILION,
    add_legend_below,
    new_figure,
    save_figure,
)


class TuningPanel(NamedTuple):
    """The numbers of one target."""

    name: str
    step_sizes: np.ndarray
    """`[seeds, iterations]`."""
    with_start: np.ndarray
    """`[seeds, grid]`."""
    without_start: np.ndarray
    learned: np.ndarray
    """`[seeds]`."""


def draw_step_sizes(stem: Path, panels: Sequence[TuningPanel]) -> list[Path]:
    """Draws the step size during training."""
    figure = new_figure(10.5, 3.4)
    for axes, panel in zip(_row(figure, len(panels), sharey=True), panels, strict=True):
        iterations = np.arange(1, panel.step_sizes.shape[1] + 1)
        axes.plot(iterations, panel.step_sizes.T, color=BLUE, alpha=0.3, lw=0.7)
        axes.plot(iterations, panel.step_sizes.mean(axis=0), color=BLUE, lw=2.0)
        axes.set_yscale("log")
        _label(axes, panel.name, "iterations")
    figure.axes[0].set_ylabel("step size")
    return save_figure(figure, stem)


def draw_efficiencies(
    stem: Path, panels: Sequence[TuningPanel], grid: Sequence[float]
) -> list[Path]:
    """Draws the efficiency of long runs against their step size."""
    figure = new_figure(10.5, 3.8)
    for axes, panel in zip(_row(figure, len(panels)), panels, strict=True):
        for values, colour, label in (
            (panel.with_start, BLUE, "learned start"),
            (panel.without_start, ORANGE, "start not learned"),
        ):
            axes.plot(grid, values.T, color=colour, alpha=0.3, lw=0.7)
            axes.plot(grid, values.mean(axis=0), color=colour, lw=2.0, marker="o", label=label)
        axes.plot(
            panel.step_sizes[:, -1],
            panel.learned,
            "*",
            color=VERMILION,
            ms=11,
            label="learned start and step",
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        _label(axes, panel.name, "step size")
    figure.axes[0].set_ylabel("independent draws\nper 1000 gradients")
    add_legend_below(figure, figure.axes[0])
    return save_figure(figure, stem)


def _row(figure: Any, number: int, **options: Any) -> list[Any]:
    """Returns the axes of one row of panels, even if there is only one."""
    return list(figure.subplots(1, number, squeeze=False, **options)[0])


def _label(axes: Any, title: str, x_label: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.spines[["top", "right"]].set_visible(False)
