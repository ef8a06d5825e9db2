"""Data sets that come with the package, and their loaders."""

from relbo.data._co2 import MonthlySeries as MonthlySeries
from relbo.data._co2 import load_co2 as load_co2
from relbo.data._images import binarized_mnist as binarized_mnist
from relbo.data._images import fashion_mnist as fashion_mnist
from relbo.data._rows import Rows as Rows
from relbo.data._splits import ImageSplit as ImageSplit
from relbo.data._splits import ImageSplits as ImageSplits
