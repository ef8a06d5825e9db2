"""Binary images that come with the package, and their loaders."""

from relbo_paper.data.images import binarized_mnist as binarized_mnist
from relbo_paper.data.images import fashion_mnist as fashion_mnist
from relbo_paper.data.splits import ImageSplit as ImageSplit
from relbo_paper.data.splits import ImageSplits as ImageSplits
