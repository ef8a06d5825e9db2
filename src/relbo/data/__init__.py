"""A data set that comes with the package."""

from relbo.data.co2 import MonthlySeries as MonthlySeries
from relbo.data.co2 import load_co2 as load_co2
