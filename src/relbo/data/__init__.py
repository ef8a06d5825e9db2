"""Data sets that come with the package, and their loaders."""

from relbo.data._co2 import MonthlySeries as MonthlySeries
from relbo.data._co2 import load_co2 as load_co2
