"""Images with their labels, for training, choosing and testing."""

from typing import NamedTuple

import numpy as np

_VALID_SHARE = 6
"""One training image in so many is kept for validation: 10,000 of MNIST's 60,000."""


def even_rows(length: int, number: int) -> np.ndarray:
    """So many of the first numbers, spread evenly."""
    return np.arange(number) * length // number


class ImageSplit(NamedTuple):
    """Images of zeros and ones, and what they show."""

    images: np.ndarray
    """uint8 `[n, 784]`, rows of pixels from the top."""
    labels: np.ndarray
    """uint8 `[n]`, from 0 to 9."""

    def evenly(self, number: int) -> "ImageSplit":
        """So many images, taken evenly from the first to the last: a file may be sorted."""
        if not 1 <= number <= len(self.images):
            raise ValueError(
                f"number: expected 1 to the {len(self.images)} images there are, got {number}"
            )
        rows = even_rows(len(self.images), number)
        return ImageSplit(self.images[rows], self.labels[rows])


class ImageSplits(NamedTuple):
    """A data set of images in three parts."""

    train: ImageSplit
    valid: ImageSplit
    test: ImageSplit


def split_images(images: np.ndarray, labels: np.ndarray, num_test: int) -> ImageSplits:
    """The last `num_test` are the test, and of the others the last sixth is validation."""
    num_train = len(images) - num_test
    ends = (num_train - num_train // _VALID_SHARE, num_train)
    parts = zip(np.split(images, ends), np.split(labels, ends), strict=True)
    return ImageSplits(*(ImageSplit(*part) for part in parts))
