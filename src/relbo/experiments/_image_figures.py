"""Rows of small images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relbo.experiments._figures import new_figure, save_figure

SIDE = 28


def draw_codes(stem: Path, rows: Mapping[str, np.ndarray], title: str) -> list[Path]:
    """Each row of images in one strip, with its name on the left.

    Args:
        stem: where the figure goes.
        rows: images `[n, 784]` by name, with numbers from 0 to 1.
        title: above them all.
    """
    width = max(len(images) for images in rows.values())
    figure = new_figure(0.5 * width + 1.5, 0.5 * len(rows) + 0.7)
    strips = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axes, (name, images) in zip(strips, rows.items(), strict=True):
        axes.imshow(_strip(images), cmap="gray_r", vmin=0.0, vmax=1.0)
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, stem)


def _strip(images: np.ndarray) -> np.ndarray:
    return np.concatenate(list(images.reshape(-1, SIDE, SIDE)), axis=1)
