"""Pictures of a posterior: its chains, their ranks, its pairs of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.experiments._figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    new_figure,
    save_figure,
)
from relbo.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUM_ROWS = 8
_NUM_PAIRED = 5
_NUM_BINS = 10
_GREY = "0.35"
_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK, _GREY)


class Coordinate(NamedTuple):
    """One number of a posterior."""

    name: str
    draws: Float[np.ndarray, "chains draws"]
    rhat: float

    @property
    def shown(self) -> tuple[float, float]:
        """Where nearly all draws are: a heavy tail would leave nothing else to see."""
        low, high = np.quantile(self.draws, [0.005, 0.995])
        margin = 0.5 * (high - low)
        return max(self.draws.min(), low - margin), min(self.draws.max(), high + margin)


def draw_figures(posterior: Posterior, directory: Path) -> list[Path]:
    """Writes `trace`, `rank` and `pair`, as PNG and SVG; returns the paths of the PNGs."""
    coordinates = choose_coordinates(posterior, _NUM_ROWS)
    if not coordinates:
        return []
    figures = {
        "trace": _trace_figure(coordinates),
        "rank": _rank_figure(coordinates, posterior.num_superchains),
    }
    if len(coordinates) > 1:
        figures["pair"] = _pair_figure(choose_coordinates(posterior, _NUM_PAIRED))
    return [_save(figure, directory / name) for name, figure in figures.items()]


def _save(figure: Figure, stem: Path) -> Path:
    # The layout takes longer than the drawing: once is enough for both files.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return save_figure(figure, stem)[0]


def choose_coordinates(posterior: Posterior, number: int) -> list[Coordinate]:
    """Scalars, then the first of each other site, then the second; always the worst R-hat.

    They come back in the order of the sites.
    """
    table = posterior.summary()
    rhat = dict(zip(table.names, table.columns["rhat"], strict=True))
    ranked: list[tuple[tuple[bool, int, int], Coordinate]] = []
    row = 0
    for place, values in enumerate(posterior.chains.values()):
        flat = values.reshape(*values.shape[:2], -1)
        for depth in range(flat.shape[2]):
            name, draws = table.names[row], flat[..., depth].astype(float)
            row += 1
            if np.all(np.isfinite(draws)) and np.ptp(draws) > 0:
                order = (flat.shape[2] > 1, depth, place)
                ranked.append((order, Coordinate(name, draws, float(rhat[name]))))
    ranked.sort(key=lambda item: item[0])
    chosen = ranked[:number]
    worst = max(ranked, key=lambda item: item[1].rhat, default=None)
    if worst is not None and worst not in chosen:
        chosen[-1] = worst
    return [coordinate for _, coordinate in sorted(chosen, key=lambda item: item[0][:0:-1])]


def _trace_figure(coordinates: list[Coordinate]) -> Figure:
    figure = new_figure(9.0, 0.7 + 1.35 * len(coordinates))
    axes = figure.subplots(len(coordinates), 2, squeeze=False, width_ratios=(1, 2))
    for (left, right), coordinate in zip(axes, coordinates, strict=True):
        _density(left, coordinate)
        _trace(right, coordinate)
    axes[0, 0].set_title("all draws, median and 90 % interval", fontsize=9)
    axes[0, 1].set_title("each chain, and median and 90 % interval over the chains", fontsize=9)
    axes[-1, 1].set_xlabel("draw")
    return figure


def _density(axes: Axes, coordinate: Coordinate) -> None:
    draws = coordinate.draws.ravel()
    axes.hist(draws, bins=40, range=coordinate.shown, density=True, color=SKY, linewidth=0)
    low, high = np.quantile(draws, [0.05, 0.95])
    base = -0.04 * axes.get_ylim()[1]
    axes.plot([low, high], [base, base], color=BLACK, linewidth=2, solid_capstyle="butt")
    axes.plot([np.median(draws)], [base], "o", color=BLACK, markersize=4)
    axes.set_ylabel(coordinate.name, rotation=0, ha="right", va="center", fontsize=9)
    axes.set_yticks([])
    _tidy(axes, keep=("bottom",))


def _trace(axes: Axes, coordinate: Coordinate) -> None:
    draws = coordinate.draws
    steps = np.arange(1, draws.shape[1] + 1)
    # One line with gaps is drawn several times faster than a line for each chain.
    gaps = np.pad(draws, ((0, 0), (0, 1)), constant_values=np.nan).ravel()
    places = np.tile(np.append(steps, steps[-1]), len(draws))
    axes.plot(places, gaps, color=SKY, linewidth=0.4, alpha=0.4, rasterized=True)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    for line, width in ((low, 0.8), (np.median(draws, axis=0), 1.4), (high, 0.8)):
        axes.plot(steps, line, color=BLUE, linewidth=width)
    axes.set_xlim(1, max(2, draws.shape[1]))
    axes.set_ylim(*_padded(coordinate.shown))
    _tidy(axes, keep=("left", "bottom"))


def _rank_figure(coordinates: list[Coordinate], num_superchains: int) -> Figure:
    columns = 2 if len(coordinates) > 1 else 1
    rows = -(-len(coordinates) // columns)
    figure = new_figure(9.0, 1.0 + 1.6 * rows)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for place, coordinate in zip(axes, coordinates, strict=False):
        _ranks(place, coordinate, num_superchains)
    for place in axes[len(coordinates) :]:
        place.set_visible(False)
    figure.suptitle(
        "How often draws of each group of chains (a colour) fall in each tenth of all draws\n"
        "1 everywhere if the chains agree; grey: 99 % of the points of independent draws",
        fontsize=9,
    )
    figure.supxlabel("rank among all draws", fontsize=9)
    return figure


def _ranks(axes: Axes, coordinate: Coordinate, num_superchains: int) -> None:
    groups = _grouped_ranks(coordinate.draws, num_superchains)
    edges = np.linspace(0.0, 1.0, _NUM_BINS + 1)
    share = 1 / _NUM_BINS
    spread = 2.58 * np.sqrt((1 - share) / (share * groups.shape[1]))
    axes.axhspan(max(0.0, 1 - spread), 1 + spread, color="0.93", linewidth=0)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    # Side by side within a bin, since lines on top of each other cannot be told apart.
    offsets = (np.arange(len(groups)) + 1) / (len(groups) + 1) * share
    for ranks, offset, colour in zip(groups, offsets, _COLOURS, strict=False):
        shares = np.histogram(ranks, edges, density=True)[0]
        axes.vlines(edges[:-1] + offset, 1.0, shares, color=colour, linewidth=0.8)
        axes.plot(edges[:-1] + offset, shares, "o", color=colour, markersize=2.5)
    axes.set_xticks(edges[::2])
    axes.grid(axis="x", color="0.85", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_title(coordinate.name, fontsize=9, pad=3)
    axes.set_xlim(0.0, 1.0)
    _tidy(axes, keep=("left", "bottom"))


def _grouped_ranks(
    draws: Float[np.ndarray, "chains draws"], num_superchains: int
) -> Float[np.ndarray, "groups n"]:
    """Ranks in (0, 1), by superchain; superchains beyond the colours are put together."""
    ranks = (np.argsort(np.argsort(draws, axis=None)) + 0.5) / draws.size
    fitting = (k for k in range(len(_COLOURS), 0, -1) if num_superchains % k == 0)
    return ranks.reshape(next(fitting), -1)


def _pair_figure(coordinates: list[Coordinate]) -> Figure:
    number = len(coordinates)
    figure = new_figure(1.2 + 1.6 * number, 0.8 + 1.6 * number)
    axes = figure.subplots(number, number, squeeze=False, sharex="col")
    some = _spread(coordinates[0].draws.size)
    for row, vertical in enumerate(coordinates):
        for column, horizontal in enumerate(coordinates):
            place = axes[row, column]
            if row == column:
                draws, shown = vertical.draws.ravel(), vertical.shown
                place.hist(draws, bins=30, range=shown, color=SKY, linewidth=0)
                place.set_yticks([])
                _tidy(place, keep=("bottom",))
            elif row > column:
                _scatter(place, horizontal, vertical, some)
            else:
                _correlation(place, horizontal, vertical)
            _label(place, row, column, number, vertical.name, horizontal.name)
    figure.align_ylabels(axes[:, 0])
    return figure


def _scatter(axes: Axes, x: Coordinate, y: Coordinate, some: np.ndarray) -> None:
    points = {"s": 3, "color": BLUE, "alpha": 0.25, "linewidths": 0, "rasterized": True}
    axes.scatter(x.draws.ravel()[some], y.draws.ravel()[some], **points)
    axes.set_xlim(*_padded(x.shown))
    axes.set_ylim(*_padded(y.shown))
    _tidy(axes, keep=("left", "bottom"))


def _correlation(axes: Axes, x: Coordinate, y: Coordinate) -> None:
    value = np.corrcoef(x.draws.ravel(), y.draws.ravel())[0, 1]
    axes.text(
        0.5,
        0.5,
        # Adding zero turns -0.00 into 0.00.
        f"{round(value, 2) + 0.0:.2f}",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=8 + 8 * abs(value),
        color=_GREY,
    )
    axes.set_yticks([])
    _tidy(axes, keep=())


def _label(axes: Axes, row: int, column: int, number: int, left: str, below: str) -> None:
    if row == number - 1:
        axes.set_xlabel(below, fontsize=9)
    else:
        axes.tick_params(labelbottom=False)
    if column == 0:
        axes.set_ylabel(left, fontsize=9)
    elif row != column:
        axes.tick_params(labelleft=False)


def _spread(size: int) -> np.ndarray:
    """Evenly spread draws, few enough to see through."""
    return np.linspace(0, size - 1, min(size, 2000)).astype(int)


def _padded(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _tidy(axes: Axes, keep: tuple[str, ...]) -> None:
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(side in keep)
    axes.tick_params(labelsize=8)
    if "bottom" not in keep:
        axes.tick_params(bottom=False)
