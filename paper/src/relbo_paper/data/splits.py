"""Images with their labels, for training, validation and testing."""

from typing import NamedTuple

import numpy as np

_VALID_SHARE = 6
"""One training image in six is kept for validation: 10,000 of MNIST's 60,000."""


def even_rows(length: int, number: int) -> np.ndarray:
    """Returns evenly spaced indices into `range(length)`."""
    return np.arange(number) * length // number


class ImageSplit(NamedTuple):
    """Binary images with their labels."""

    images: np.ndarray
    """uint8 `[n, 784]`, the pixel rows from top to bottom."""
    labels: np.ndarray
    """uint8 `[n]`, from 0 to 9."""

    def evenly(self, number: int) -> "ImageSplit":
        """Returns evenly spaced images, because a file may be sorted."""
        if not 1 <= number <= len(self.images):
            raise ValueError(
                f"number: expected 1 to {len(self.images)}, the number of images, got {number}"
            )
        rows = even_rows(len(self.images), number)
        return ImageSplit(self.images[rows], self.labels[rows])


class ImageSplits(NamedTuple):
    """A data set of images in three parts."""

    train: ImageSplit
    valid: ImageSplit
    test: ImageSplit


def split_images(images: np.ndarray, labels: np.ndarray, num_test: int) -> ImageSplits:
    """Splits off the last `num_test` for testing and the last sixth of the rest to validate."""
    num_train = len(images) - num_test
    ends = (num_train - num_train // _VALID_SHARE, num_train)
    parts = zip(np.split(images, ends), np.split(labels, ends), strict=True)
    return ImageSplits(*(ImageSplit(*part) for part in parts))
