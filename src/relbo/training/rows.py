"""Data that stay on disk until a minibatch needs them."""

from pathlib import Path
from typing import Any

import numpy as np

NUM_PROBES = 64
"""Number of rows that are compared to tell one data set from another."""


class Rows:
    """Data points that are read only when a minibatch needs them.

    For a training set that is larger than memory: pass it to `relbo.fit` in the place of an
    array, with a `batch_size`. A thread of the host reads the next 100 minibatches while the
    device computes, so that two chunks of 100 minibatches are in memory at any time. Each of
    several processes reads the rows of its own devices only. The order is that of an array in
    memory: it depends on the key alone, not on the number of devices and processes.

    A memory map needs no further dependency, and the operating system keeps in memory what is
    used often.

    Args:
        source: an array on disk, such as `numpy.load(path, mmap_mode="r")`, or anything with a
            `shape`, a `dtype` and indexing by sorted indices, as h5py and zarr have.

    Example:
        >>> rows = Rows.open("images.npy")
        >>> trained = relbo.fit(0, model, (rows,), {"num_images": len(rows)}, batch_size=128)
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
                f"source: expected one row per data point, got the shape {source.shape}"
            )
        self.source = source

    @classmethod
    def open(cls, path: str | Path) -> "Rows":
        """Opens a `.npy` file as a memory map.

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
        """Reads rows in the given order.

        Args:
            rows: indices, in any shape.
        """
        # In ascending order, as the disk has them and h5py wants them, and each one once.
        wanted, back = np.unique(rows, return_inverse=True)
        return np.asarray(self.source[wanted])[back.reshape(np.shape(rows))]

    def probe(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads the shape and some rows, which identify the data set."""
        some = np.linspace(0, len(self) - 1, NUM_PROBES).round().astype(int)
        return np.array(self.shape), self.fetch(some)
