"""The data of a fit: rows in memory or on disk, and which of them a minibatch takes."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Key, Scalar

from relbo._devices import Spread
from relbo._devices import rows as rows_over_devices
from relbo.core.checks import check_integer
from relbo.problem.call import Call, CallLayout, split_call
from relbo.training.stopping import CHUNK

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


class DataLayout(NamedTuple):
    """The arguments of a model without their arrays, and how these are cut; hashable."""

    call: CallLayout
    is_cut: tuple[bool, ...] = ()
    """Which of the arrays have one row per data point and are cut into minibatches."""
    num_rows: int | None = None
    """Number of data points; `None` without minibatches."""
    batch_size: int | None = None
    is_streamed: bool = False
    """Whether the host reads the rows, a chunk at a time."""

    def cut(self, arrays: tuple, take: Callable[[Any], Any]) -> tuple:
        """Applies `take` to the arrays that have one row per data point."""
        return tuple(take(x) if c else x for x, c in zip(arrays, self.is_cut, strict=True))


class TrainingData(NamedTuple):
    """The arguments of a model: a layout with its arrays."""

    layout: DataLayout
    arrays: tuple
    """All arrays, `Rows` included."""
    first: tuple
    """The arrays of a first minibatch, which serve to set things up."""

    @property
    def first_call(self) -> Call:
        """The arguments with the first minibatch."""
        return self.layout.call.fill(self.first)

    @property
    def whole_arrays(self) -> tuple:
        """The arrays that are copied to every device."""
        is_streamed = self.layout.is_streamed
        return self.layout.cut(self.arrays, lambda _: None) if is_streamed else self.arrays

    def with_constants(self) -> "TrainingData":
        """Returns data without arrays: they are constants, whose values a model can use."""
        if self.layout.batch_size is not None:
            raise ValueError(
                "batch_size: the model uses the values of its arguments while it is traced "
                "(an `if`, an `int(...)` or NumPy on them), so it cannot be given minibatches; "
                "use jax.numpy on them, or pass Python numbers for sizes"
            )
        return TrainingData(DataLayout(self.layout.call.with_constants(self.first)), (), ())

    def not_finite(self) -> list[str]:
        """Names the arguments that contain NaN or infinity."""
        call = (
            self.first_call if self.layout.is_streamed else self.layout.call.fill(self.arrays)
        )
        paths, _ = jax.tree_util.tree_flatten_with_path(call._asdict())
        return [
            jax.tree_util.keystr(path).removeprefix("['").replace("']", "", 1)
            for path, leaf in paths
            if isinstance(leaf, jax.Array)
            and jnp.issubdtype(leaf.dtype, jnp.inexact)
            and not np.all(np.isfinite(np.asarray(leaf)))
        ]


def laid_out(call: Call, batch_size: int | None) -> TrainingData:
    """Splits arguments into their layout and their arrays, `Rows` included."""
    is_rows = lambda leaf: isinstance(leaf, Rows)
    if batch_size is None and any(map(is_rows, jax.tree.leaves(call))):
        raise ValueError("batch_size: relbo.Rows are read in minibatches; say how large")
    # Rows are data, and one of them stands for all.
    shown = jax.tree.map(lambda leaf: leaf.source[:1] if is_rows(leaf) else leaf, call)
    layout, _ = split_call(shown)
    leaves = zip(jax.tree.leaves(call), layout.is_array, strict=True)
    arrays = tuple(x if is_rows(x) else jnp.asarray(x) for x, is_array in leaves if is_array)
    if batch_size is None:
        return TrainingData(DataLayout(layout, (False,) * len(arrays)), arrays, arrays)
    number = _common_length(arrays, batch_size)
    is_cut = tuple(x.shape[:1] == (number,) for x in arrays)
    for x, cut in zip(arrays, is_cut, strict=True):
        if is_rows(x) and not cut:
            raise ValueError(
                f"args: {x} has {len(x)} rows, but there are {number} data points; all "
                "relbo.Rows of a call must have one row per data point"
            )
    cut_layout = DataLayout(layout, is_cut, number, batch_size, any(map(is_rows, arrays)))
    rows = np.arange(batch_size)
    fetch = lambda x: x.fetch(rows) if is_rows(x) else x[:batch_size]
    return TrainingData(
        cut_layout, arrays, cut_layout.cut(arrays, lambda x: jnp.asarray(fetch(x)))
    )


def minibatch(
    layout: DataLayout,
    iteration: Scalar,
    arrays: tuple,
    streamed: tuple,
    spread: Spread | None,
) -> tuple:
    """Returns the arrays of one iteration.

    Args:
        layout: the layout of the arguments.
        iteration: number of the iteration.
        arrays: whole arrays.
        streamed: what the host sent for the current chunk; see `RowStream`.
        spread: the devices that share the rows.
    """
    if layout.batch_size is None:
        return arrays
    here = lambda x: jax.lax.dynamic_index_in_dim(x, iteration % CHUNK, keepdims=False)
    sent = rows_over_devices(spread, jax.tree.map(here, streamed))
    if layout.is_streamed:
        return eqx.combine(sent, arrays)
    (rows,) = sent
    return layout.cut(arrays, lambda x: rows_over_devices(spread, jnp.take(x, rows, axis=0)))


@partial(jax.jit, static_argnums=2)
def epoch_orders(keys: Key[Array, " s"], epoch: int | Scalar, number: int) -> Int[Array, "s n"]:
    """Returns each seed's permutation of the data points in an epoch."""
    return jax.vmap(lambda key: jr.permutation(jr.fold_in(key, epoch), number))(keys)


class RowStream:
    """Sends the minibatches of a chunk to the devices, and reads the next while they compute.

    Of arrays in memory only the numbers of the rows are sent. An epoch's order depends on the
    key and the number of the epoch only, so that a key gives the same order wherever a run was
    interrupted.

    Args:
        data: the data.
        order_keys: one key per seed.
        spread: each device is given its part of every minibatch, and a process reads only the
            parts of its own devices.
    """

    def __init__(self, data: TrainingData, order_keys: Key[Array, " s"], spread: Spread | None):
        layout = data.layout
        self._batch_size, self._spread = layout.batch_size or 0, spread
        self._batches_per_epoch = (layout.num_rows or 0) // (self._batch_size or 1)
        # A chunk may contain the end of one epoch and the start of the next.
        self._orders = lru_cache(2)(
            lambda epoch: np.asarray(epoch_orders(order_keys, epoch, layout.num_rows))
        )
        as_rows = lambda x: x if isinstance(x, Rows) else Rows(np.asarray(x))
        self._sources = [
            as_rows(x) if cut else None
            for x, cut in zip(data.arrays, layout.is_cut, strict=True)
            if layout.is_streamed
        ] or [Rows(np.arange(layout.num_rows or 1))]
        self._lead = (len(order_keys), CHUNK, self._batch_size)
        self._thread = ThreadPoolExecutor(1, "relbo-rows")
        self._chunks: dict[int, Future] = {}

    @property
    def shapes(self) -> tuple:
        """Shapes and types of what is sent for a chunk."""
        if not self._batch_size:
            return ()
        return tuple(
            x and jax.ShapeDtypeStruct((*self._lead, *x.shape[1:]), _dtype(x))
            for x in self._sources
        )

    def chunk(self, iteration: int, num_iterations: int) -> tuple:
        """Returns the minibatches of an iteration's chunk and starts to read the next."""
        if not self._batch_size:
            return ()
        # A time budget may have cut the chunk.
        first = iteration - iteration % CHUNK
        self._chunks = {start: rows for start, rows in self._chunks.items() if start >= first}
        for start in (first, first + CHUNK):
            if start < num_iterations and start not in self._chunks:
                is_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
                self._chunks[start] = self._thread.submit(self._read, self.rows(start), is_x64)
        return self._chunks[first].result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def rows(self, start: int) -> Int[np.ndarray, "seeds chunk batch"]:
        """Returns the numbers of the rows of a chunk, for each seed and iteration."""
        size, found = self._batch_size, []
        for iteration in range(start, start + CHUNK):
            epoch, batch = divmod(iteration, self._batches_per_epoch)
            found.append(self._orders(epoch)[:, batch * size : (batch + 1) * size])
        return np.stack(found, axis=1)

    def _read(self, rows: Int[np.ndarray, "seeds chunk batch"], is_x64: bool) -> tuple:
        with jax.enable_x64(is_x64):  # a thread does not inherit it
            return tuple(None if x is None else self._block(x, rows) for x in self._sources)

    def _block(self, source: Rows, rows: Int[np.ndarray, "seeds chunk batch"]) -> Any:
        if self._spread is None:
            return jnp.asarray(source.fetch(rows))
        return jax.make_array_from_callback(
            (*rows.shape, *source.shape[1:]),
            self._spread.along(self._batch_size, axis=2),
            # The callback is given slices of all axes; only the first three are split.
            lambda part: source.fetch(rows[part[:3]]),  # type: ignore[index]
            dtype=_dtype(source),
        )


def _dtype(source: Rows) -> np.dtype:
    """Returns the type that rows have on a device."""
    return jax.dtypes.canonicalize_dtype(source.dtype)


def _common_length(arrays: tuple, batch_size: int) -> int:
    """Returns the number of data points: the leading length that most arrays share."""
    check_integer("batch_size", batch_size, 1)
    lengths = Counter(x.shape[0] for x in arrays if x.ndim > 0 and x.shape[0] >= batch_size)
    if not lengths:
        raise ValueError(
            f"batch_size: no argument of the model has {batch_size} rows or more to take a "
            f"minibatch from; the arrays among them have shapes {[x.shape for x in arrays]}"
        )
    (length, count), *others = lengths.most_common()
    if others and others[0][1] == count:
        raise ValueError(
            f"batch_size: the arguments have leading lengths {sorted(lengths)}, and it is not "
            "clear which of them is the number of data points: pass only arrays with one row "
            "per data point, and let the model know the others"
        )
    return length
