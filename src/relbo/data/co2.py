"""Carbon dioxide in the air at Mauna Loa."""

from importlib.resources import files
from typing import NamedTuple

import numpy as np


class MonthlySeries(NamedTuple):
    """One number a month."""

    months: np.ndarray
    """`datetime64[M]`."""
    values: np.ndarray

    def since(self, month: str) -> "MonthlySeries":
        """The series from a month on, such as `"1966-01"`."""
        is_later = self.months >= np.datetime64(month, "M")
        return MonthlySeries(self.months[is_later], self.values[is_later])


def load_co2() -> MonthlySeries:
    """Monthly means of carbon dioxide in parts per million, January 1959 to December 1997.

    468 values, in float64. Three months that were missing at the source (February to April
    1964) have been interpolated there. The paper's series begins in January 1966.

    References:
        C. D. Keeling and T. P. Whorf, Scripps Institution of Oceanography, University of
        California, La Jolla; public, here as R's data set `co2` has it.

    Example:
        >>> load_co2().since("1966-01").values[:2]
        array([320.46, 321.43])
    """
    text = files("relbo.data").joinpath("co2.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    months = np.array([month for month, _ in rows], dtype="datetime64[M]")
    return MonthlySeries(months, np.array([float(ppm) for _, ppm in rows]))
