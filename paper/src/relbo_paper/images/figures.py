"""Figures of the image experiments: rows of images, and reliability diagrams."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Array

from relbo.evaluate import CategoricalForecast, calibration_error, reliability
from relbo_paper.harness.figures import BLUE, new_figure, save_figure

SIDE = 28


def draw_image_rows(stem: Path, rows: Mapping[str, np.ndarray], title: str) -> list[Path]:
    """Draws each row of images as a strip, with its name on the left.

    Args:
        stem: the file name without its ending.
        rows: images `[n, 784]` by name, with values from 0 to 1.
        title: the title of the figure.
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


def draw_reliability(
    stem: Path, forecast: CategoricalForecast, observed: Array, title: str
) -> list[Path]:
    """Draws the accuracy of the guesses against their probability."""
    found = reliability(forecast, observed)
    is_filled = np.asarray(found.number) > 0
    sure, right, number = (np.asarray(part)[is_filled] for part in found)
    low, high = wilson_interval(right, number)
    figure = new_figure(4.2, 4.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="perfect calibration")
    axes.errorbar(
        sure,
        right,
        (right - low, high - right),
        fmt="o",
        color=BLUE,
        label=f"calibration error {float(calibration_error(forecast, observed)):.3f}",
    )
    for where, height, many in zip(sure, high, number, strict=True):
        axes.text(where, height + 0.01, f"{many}", ha="center", va="bottom", fontsize=7)
    axes.set_ylim(-0.02, 1.08)
    axes.set_xlabel("probability of the guess")
    axes.set_ylabel("accuracy, and number of guesses")
    axes.set_title(textwrap.fill(title, 48), fontsize=10)
    axes.legend(frameon=False)
    return save_figure(figure, stem)


def wilson_interval(share: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the Wilson interval of one standard error, which is wide for small bins."""
    middle = (share + 0.5 / number) / (1.0 + 1.0 / number)
    half = np.sqrt(share * (1.0 - share) / number + 0.25 / number**2) / (1.0 + 1.0 / number)
    # The share lies inside up to rounding.
    return np.minimum(middle - half, share), np.maximum(middle + half, share)
