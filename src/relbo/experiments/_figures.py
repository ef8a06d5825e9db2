"""Figures: one look for all of them, as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which the colour-blind can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot: no window system is asked for and no global state is touched.

    matplotlib is imported here and not above, since most commands draw nothing.
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
    # Fixed identifiers and no date: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "relbo"}):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], dpi=150, metadata={"Date": None})
    return paths
