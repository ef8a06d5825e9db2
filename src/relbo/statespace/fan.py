"""The picture of a forecast: the end of a series and a fan of quantiles."""

from typing import Any

import numpy as np
import pandas as pd

_BLUE, _BLACK = "#0072b2", "#222222"


def draw_fan(history: pd.Series, frame: pd.DataFrame, axes: Any = None) -> Any:
    """Draws the end of a series and its forecast, and returns the axes.

    The frame has one column for each quantile, named like `"97.5%"`, from the lowest to the
    highest; other columns are ignored.
    """
    if axes is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
    columns = [name for name in frame.columns if str(name).endswith("%")]
    number = len(columns) // 2
    ahead = _positions(frame.index)
    for rank in range(number):
        low, high = columns[rank], columns[-1 - rank]
        share = float(high[:-1]) - float(low[:-1])
        axes.fill_between(
            ahead,
            frame[low],
            frame[high],
            color=_BLUE,
            alpha=0.18 + 0.14 * rank,
            lw=0,
            label=f"{share:g} % interval",
        )
    if len(columns) % 2:
        axes.plot(ahead, frame[columns[number]], color=_BLUE, lw=1.6, label="median")
    axes.plot(_positions(history.index), history, color=_BLACK, lw=1.0, label="observed")
    axes.set_ylabel(history.name or "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left")
    return axes


def _positions(index: pd.Index) -> np.ndarray:
    """Returns what matplotlib draws on a date axis, or numbers."""
    return (index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index).to_numpy()
