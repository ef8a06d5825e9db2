"""Data that stay where they are until a minibatch needs them."""

from pathlib import Path
from typing import Any

import numpy as np

NUM_PROBES = 64
"""Rows that are looked at to tell one data set from another."""


class Rows:
    """Data points that are read when a minibatch needs them, not before.

    For a training set larger than memory: hand it to `relbo.fit` in the place of an array, with
    a `batch_size`. A thread of the host reads the next 100 minibatches while the device
    computes, so that two such chunks are in memory at any time. In a run of several processes
    each one reads the rows of its own devices and no others. The order is that of an array in
    memory: it comes from the key alone, whatever the number of devices and processes.

    A plain memory map does this without another dependency; the operating system keeps in
    memory what is used often.

    Args:
        source: an array on disk, such as `numpy.load(path, mmap_mode="r")`, or anything with a
            `shape`, a `dtype` and rows for an array of sorted indices, as h5py and zarr have.

    Example:
        >>> rows = Rows.open("images.npy")
        >>> trained = relbo.fit(key, model, (rows,), {"num_images": len(rows)}, batch_size=128)
    """

    def __init__(self, source: Any):
        for name in ("shape", "dtype", "__getitem__"):
            if not hasattr(source, name):
                raise ValueError(
                    "source: expected an array, such as numpy.load(path, mmap_mode='r'); "
                    f"{type(source).__name__} has no {name}"
                )
        if len(source.shape) == 0 or source.shape[0] == 0:
            raise ValueError(
                f"source: expected a row a data point, got the shape {source.shape}"
            )
        self.source = source

    @classmethod
    def open(cls, path: str | Path) -> "Rows":
        """The rows of a `.npy` file, memory-mapped.

        Args:
            path: the file, as `numpy.save` writes it.
        """
        return cls(np.load(path, mmap_mode="r"))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.source.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Rows({self.dtype}{list(self.shape)})"

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        """Some rows, in the order asked for.

        Args:
            rows: their numbers, in any shape.
        """
        # In ascending order, as the disk has them (and h5py wants them); each one once.
        wanted, back = np.unique(rows, return_inverse=True)
        return np.asarray(self.source[wanted])[back.reshape(np.shape(rows))]

    def probe(self) -> tuple[np.ndarray, np.ndarray]:
        """What tells this data set from another, without reading all of it."""
        some = np.linspace(0, len(self) - 1, NUM_PROBES).round().astype(int)
        return np.array(self.shape), self.fetch(some)
