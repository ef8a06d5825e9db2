"""Figures of the funnel: loss curves, and clouds of draws over the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo_paper.harness.figures import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILION,
    add_legend_below,
    new_figure,
    save_figure,
)
from relbo_paper.models import funnel_logdensity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOG_WIDTH = (-4.5, 4.5)
_ACROSS = (-9.0, 9.0)


class FunnelCurve(NamedTuple):
    """The losses of one row."""

    name: str
    losses: Float[Array, "seeds iterations"]


class FunnelCloud(NamedTuple):
    """Draws of a refined guide, and the loc and scale of its base."""

    title: str
    draws: Float[Array, "draws 2"]
    loc: Float[Array, 2]
    scale: Float[Array, 2]


def draw_losses(
    stem: Path, curves: Sequence[FunnelCurve], iteration: int, paper: Mapping[str, float]
) -> list[Path]:
    """Draws one panel for each account: the mean over seeds dark, each seed light."""
    accounts = ("Monte Carlo", "particle")
    figure = new_figure(9.0, 4.1)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, account in zip(panels, accounts, strict=True):
        shown = [curve for curve in curves if curve.name == "T=0" or account in curve.name]
        for curve, colour in zip(shown, (BLUE, VERMILION, ORANGE), strict=False):
            _draw_curve(axes, curve, colour, f", {account}")
        for marker, (name, loss) in zip("os", paper.items(), strict=True):
            axes.plot(
                iteration,
                loss,
                marker,
                color=BLACK,
                mfc="none",
                ms=7,
                ls="none",
                label=f"paper, {name} ({loss})",
            )
        axes.set_title(f"{account} account (T=1: a surrogate)", fontsize=10)
        axes.set_xlabel("iteration")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("loss (minimised)")
    panels[0].set_ylim(*_loss_limits(curves))
    add_legend_below(figure, panels[0], fontsize=9)
    return save_figure(figure, stem)


def draw_clouds(stem: Path, clouds: Sequence[FunnelCloud]) -> list[Path]:
    """Draws the target as filled contours, the draws, and the base's 1 and 2 sd ellipses."""
    figure = new_figure(4.4 * len(clouds), 4.6)
    panels = np.atleast_1d(figure.subplots(1, len(clouds), sharey=True))
    for axes, cloud in zip(panels, clouds, strict=True):
        _draw_target(axes)
        draw_cloud(axes, cloud)
        axes.set_title(cloud.title, fontsize=10)
        axes.set_xlabel("$z_2$")
        axes.set_xlim(*_ACROSS)
        axes.set_ylim(*_LOG_WIDTH)
    panels[0].set_ylabel("$z_1$ (log of the width)")
    _add_legend(figure)
    return save_figure(figure, stem)


def draw_cloud(axes: Axes, cloud: FunnelCloud) -> None:
    """Draws a cloud with z1 on the vertical axis and z2 on the horizontal one."""
    log_width, across = np.asarray(cloud.draws).T
    axes.plot(across, log_width, ".", color=VERMILION, ms=1.6, alpha=0.45, rasterized=True)
    angle = np.linspace(0, 2 * np.pi, 200)
    for radius, style in ((1, "-"), (2, "--")):
        log_width = cloud.loc[0] + radius * cloud.scale[0] * np.cos(angle)
        across = cloud.loc[1] + radius * cloud.scale[1] * np.sin(angle)
        axes.plot(across, log_width, color=BLACK, lw=1.3, ls=style)


def _draw_curve(axes: Axes, curve: FunnelCurve, colour: str, drop: str) -> None:
    losses = np.asarray(curve.losses)
    iterations = np.arange(losses.shape[1])
    axes.plot(iterations, losses.T, color=colour, alpha=0.18, lw=0.8)
    label = curve.name.removesuffix(drop).replace("SGLD ", "SGLD, step ")
    axes.plot(iterations, losses.mean(axis=0), color=colour, lw=2.2, label=label)


def _loss_limits(curves: Sequence[FunnelCurve]) -> tuple[float, float]:
    # Cuts off the large losses of the first iterations.
    means = np.stack([np.asarray(curve.losses).mean(axis=0) for curve in curves])
    return float(means.min()) - 0.6, max(float(np.quantile(means, 0.97)), 1.5) + 0.8


def _draw_target(axes: Axes) -> None:
    across = jnp.linspace(*_ACROSS, 400)
    log_width = jnp.linspace(*_LOG_WIDTH, 300)
    grid = jnp.stack(jnp.meshgrid(log_width, across, indexing="ij"), axis=-1)
    logdensity = jax.vmap(jax.vmap(funnel_logdensity))(grid)
    levels = [-9.0, -7.0, -5.5, -4.5, -3.5, -2.5, 9.0]
    colours = ["#EAF3F9", "#D3E6F1", "#B5D4E7", "#93BFDB", "#6FA8CC", "#4A8DB8"]
    axes.contourf(across, log_width, logdensity, levels=levels, colors=colours)


def _add_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="#93BFDB", label="target"),
        Line2D(
            [], [], marker="o", ls="none", ms=4, color=VERMILION, label="draws of the guide"
        ),
        Line2D([], [], color=BLACK, lw=1.3, label="base $q_0$: 1 sd"),
        Line2D([], [], color=BLACK, lw=1.3, ls="--", label="2 sd"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
