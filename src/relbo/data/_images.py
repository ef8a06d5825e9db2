"""Binary images of digits and of clothes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from relbo.data._binary import draw_binary, threshold, unpack
from relbo.data._files import read_checked
from relbo.data._folder import read_folder
from relbo.data._splits import ImageSplits, split_images

_NUM_TEST = 10_000
_SHA256 = {
    "binarized_mnist.xz": "bdf4cdcec667cc458da71ae47a1e7bc7ad1038f38bfdd2dd5b44e3806d9c7ecc",
    "fashion_mnist.xz": "c239493e0c81aa370c65077a8aaddf35b0ad47ec1f3e9d9d4b156fa4f965bfb5",
}


def binarized_mnist(directory: str | Path | None = None) -> ImageSplits:
    """Handwritten digits in zeros and ones: 50,000 to train, 10,000 to choose, 10,000 to test.

    A static binarization: each pixel was drawn once, with its grey level for a probability
    (NumPy's `RandomState(20200)`, all images in the order of the original files). It is
    relbo's own draw, of the same law as the published one but another draw.

    Args:
        directory: files of your own instead: `binarized_mnist.npz` (arrays `train`, `valid`,
            `test` of zeros and ones `[n, 784]`, or packed to bytes `[n, 98]`, and
            `train_labels` and so on), or the four idx files of MNIST, with `.gz` or without,
            there or in a folder `mnist`. Grey levels are drawn as above.

    Returns:
        An `ImageSplits`.

    Raises:
        ValueError: a file is missing, damaged or not what it should be; says which.

    References:
        Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits.

    Example:
        >>> binarized_mnist().train.images.shape
        (50000, 784)
    """
    return _load("binarized_mnist.xz", directory, ("binarized_mnist", "mnist"), draw_binary)


def fashion_mnist(directory: str | Path | None = None) -> ImageSplits:
    """Pictures of clothes in zeros and ones: grey levels above one half are one.

    The first 50,000 of the training file to train, its last 10,000 to choose, and the 10,000 of
    the test file to test.

    Args:
        directory: files of your own instead, as for `binarized_mnist`: `fashion_mnist.npz`, or
            the four idx files there or in a folder `fashion_mnist` or `fashion-mnist`.

    Returns:
        An `ImageSplits`.

    Raises:
        ValueError: as for `binarized_mnist`.

    References:
        H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking
        machine learning algorithms, 2017. MIT licence, Copyright 2017 Zalando SE.

    Example:
        >>> fashion_mnist().test.labels.shape
        (10000,)
    """
    return _load("fashion_mnist.xz", directory, ("fashion_mnist", "fashion-mnist"), threshold)


def _load(
    name: str,
    directory: str | Path | None,
    names: tuple[str, ...],
    binarize: Callable[[np.ndarray], np.ndarray],
) -> ImageSplits:
    if directory is not None:
        return read_folder(Path(directory).expanduser(), names, binarize)
    images, labels = unpack(read_checked(name, _SHA256[name]))
    return split_images(images, labels, _NUM_TEST)
