"""Which of several normals a point belongs to."""

import numpy as np
from jaxtyping import Float, Int

from relbo.gaussian.whitening import WhiteningNormal

DEGREES = 15.0
"""Degrees of freedom of a mode: few would give a narrow mode too much of a wide one around."""


def nearest_mode(
    points: Float[np.ndarray, "n d"], modes: list[WhiteningNormal]
) -> Int[np.ndarray, " n"]:
    """Returns the mode that each point most likely belongs to."""
    return np.argmax([_log_student(points, mode) for mode in modes], 0)


def _log_student(
    points: Float[np.ndarray, "n d"], mode: WhiteningNormal
) -> Float[np.ndarray, " n"]:
    """Returns the log density of a Student t, since a mode may be wider than its normal."""
    white = mode.pull(points)
    power = -0.5 * (points.shape[1] + DEGREES)
    value = power * np.log1p(np.sum(white**2, 1) / DEGREES) - mode.log_det
    return value if mode.dependence is None else value - mode.dependence.bend(white)[1]
