"""A series with its dates."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from relbo.core.checks import check_integer
from relbo.problem.arrays import Column, Frame


class DatedSeries(NamedTuple):
    """Numbers in float64, NaN where missing, and the label of each."""

    values: Float[np.ndarray, " t"]
    labels: pd.Index
    """Dates, periods or step numbers."""
    name: str

    def labels_ahead(self, horizon: int) -> pd.Index:
        """Returns the labels of the next steps."""
        check_integer("horizon", horizon, 1)
        last = self.labels[-1]
        if isinstance(self.labels, pd.PeriodIndex):
            return pd.period_range(last, periods=horizon + 1, freq=self.labels.freq)[1:]
        if isinstance(self.labels, pd.DatetimeIndex):
            return pd.date_range(last, periods=horizon + 1, freq=self.labels.freq)[1:]
        return pd.RangeIndex(last + 1, last + 1 + horizon)


def read_series(series: Any, dates: Any = None) -> DatedSeries:
    """Reads the `series` and the `dates` of `relbo.statespace.forecast`.

    Raises:
        ValueError: if it is not one column of numbers, or the dates are not evenly spaced.
    """
    index = series.index if isinstance(series, pd.Series) else None
    name = getattr(series, "name", None)
    values = _numbers(series)
    if dates is not None:
        index = _as_dates(dates)
    if index is None or not isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        index = pd.RangeIndex(len(values)) if index is None else _as_steps(index)
    if len(index) != len(values):
        raise ValueError(
            f"dates: expected one for each of the {len(values)} values, got {len(index)}"
        )
    return DatedSeries(values, _evenly_spaced(index), "" if name is None else str(name))


def _numbers(series: Any) -> Float[np.ndarray, " t"]:
    if isinstance(series, Frame):
        raise ValueError(
            "series: expected one column, got a frame: pick a column, such as frame['y'], and "
            "give its dates as dates=frame['date']"
        )
    try:
        if isinstance(series, pd.Series):
            values = series.to_numpy(dtype=float, na_value=np.nan)
        elif isinstance(series, Column):
            values = np.asarray(series.to_numpy(), dtype=float)
        else:
            values = np.array(series, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"series: expected numbers: {error}") from error
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"series: expected the shape [t], got {values.shape}")
    if np.isinf(values).any():
        raise ValueError("series: expected finite numbers or NaN for missing ones, got inf")
    return values


def _as_dates(dates: Any) -> pd.Index:
    if isinstance(dates, pd.DatetimeIndex | pd.PeriodIndex):
        return dates
    if isinstance(dates, Column):
        dates = dates.to_numpy()
    try:
        # pandas refuses months and years as units.
        values = np.asarray(dates, "datetime64[s]")
    except (TypeError, ValueError) as error:
        raise ValueError(f"dates: expected dates, such as datetime64: {error}") from error
    return pd.DatetimeIndex(values)


def _as_steps(index: pd.Index) -> pd.Index:
    """Returns whole numbers as they are, such as years; others are counted from zero."""
    whole = pd.api.types.is_integer_dtype(index.dtype) and (np.diff(index) == 1).all()
    return index if whole else pd.RangeIndex(len(index))


def _evenly_spaced(index: pd.Index) -> pd.Index:
    if isinstance(index, pd.PeriodIndex):
        expected = pd.period_range(index[0], periods=len(index), freq=index.freq)
        if not index.equals(expected):
            raise ValueError(_UNEVEN)
        return index
    if not isinstance(index, pd.DatetimeIndex) or index.freq is not None:
        return index
    spaced = pd.DatetimeIndex(index, freq="infer") if len(index) >= 3 else index
    if spaced.freq is None or not index.is_monotonic_increasing:
        raise ValueError(_UNEVEN)
    return spaced


_UNEVEN = (
    "series: expected evenly spaced dates in order, got gaps, repetitions or another order: "
    "sort them, and fill gaps with NaN by series.asfreq('MS') (months; 'D' for days, 'QS' for "
    "quarters)"
)
