"""Loads binary images of digits and of clothes."""

import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np

from relbo_paper.data.binary import draw_binary, threshold, unpack
from relbo_paper.data.folder import read_folder
from relbo_paper.data.splits import ImageSplits, split_images

_NUM_TEST = 10_000
_SHA256 = {
    "binarized_mnist.xz": "bdf4cdcec667cc458da71ae47a1e7bc7ad1038f38bfdd2dd5b44e3806d9c7ecc",
    "fashion_mnist.xz": "c239493e0c81aa370c65077a8aaddf35b0ad47ec1f3e9d9d4b156fa4f965bfb5",
}


def binarized_mnist(directory: str | Path | None = None) -> ImageSplits:
    """Loads binary handwritten digits: 50,000 to train, 10,000 to validate, 10,000 to test.

    A static binarization: each pixel was drawn once, with its grey level as the probability
    (NumPy's `RandomState(20200)`, all images in the order of the original files). It is
    relbo's own draw from the same distribution as the published one.

    Args:
        directory: your own files instead: `binarized_mnist.npz` (arrays `train`, `valid`,
            `test` of zeros and ones `[n, 784]`, or packed to bytes `[n, 98]`, and
            `train_labels` and so on), or the four idx files of MNIST, with or without `.gz`,
            there or in a folder `mnist`. Grey levels are binarized as above.

    Returns:
        An `ImageSplits`.

    Raises:
        ValueError: if a file is missing, damaged or not valid; the message names it.

    References:
        Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits.

    Example:
        >>> binarized_mnist().train.images.shape
        (50000, 784)
    """
    return _load("binarized_mnist.xz", directory, ("binarized_mnist", "mnist"), draw_binary)


def fashion_mnist(directory: str | Path | None = None) -> ImageSplits:
    """Loads binary images of clothes: grey levels above one half are one.

    The first 50,000 images of the training file are for training, its last 10,000 for
    validation, and the 10,000 images of the test file for testing.

    Args:
        directory: your own files instead, as for `binarized_mnist`: `fashion_mnist.npz`, or
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
    images, labels = unpack(_read_checked(name, _SHA256[name]))
    return split_images(images, labels, _NUM_TEST)


def _read_checked(name: str, sha256: str) -> bytes:
    """Reads a bundled file.

    Args:
        name: the file's name.
        sha256: its expected checksum.

    Raises:
        ValueError: if the file is missing or differs from the original, because numbers from
            another file are not comparable.
    """
    try:
        content = files("relbo_paper.data").joinpath(name).read_bytes()
    except OSError as error:
        raise ValueError(
            f"the data file {name} cannot be read ({error.strerror}); install relbo-paper again"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"the data file {name} is damaged or was changed: its checksum is {found}, "
            f"expected {sha256}; install relbo-paper again"
        )
    return content
