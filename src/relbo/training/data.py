"""The data of a fit: which rows a minibatch takes, and how rows on disk reach the devices."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray, Scalar

from relbo._devices import Spread
from relbo._devices import rows as rows_over_devices
from relbo.problem.call import Call, CallLayout, split_call
from relbo.training.rows import Rows
from relbo.training.stopping import CHUNK


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

    def first(self, arrays: tuple) -> tuple:
        """Returns the arrays of a first minibatch, which serve to set things up."""
        rows = np.arange(self.batch_size or 0)
        fetch = lambda x: x.fetch(rows) if isinstance(x, Rows) else x[: len(rows)]
        return self.cut(arrays, lambda x: jnp.asarray(fetch(x)))

    def with_constants(self, arrays: tuple) -> "DataLayout":
        """Returns a layout with constant arrays, for a model that needs their values."""
        if self.batch_size is not None:
            raise ValueError(
                "batch_size: the model uses the values of its arguments while it is traced "
                "(an `if`, an `int(...)` or NumPy on them), so it cannot be given minibatches; "
                "use jax.numpy on them, or pass Python numbers for sizes"
            )
        return DataLayout(self.call.with_constants(arrays))


class RowOrder(NamedTuple):
    """The order in which the data points are visited."""

    key: PRNGKeyArray
    rows: Int[Array, " n"]
    """The permutation of this epoch."""


def laid_out(call: Call, batch_size: int | None) -> tuple[DataLayout, tuple]:
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
        return DataLayout(layout, (False,) * len(arrays)), arrays
    number = _common_length(arrays, batch_size)
    is_cut = tuple(x.shape[:1] == (number,) for x in arrays)
    for x, cut in zip(arrays, is_cut, strict=True):
        if is_rows(x) and not cut:
            raise ValueError(
                f"args: {x} has {len(x)} rows, but there are {number} data points; all "
                "relbo.Rows of a call must have one row per data point"
            )
    is_streamed = any(map(is_rows, arrays))
    return DataLayout(layout, is_cut, number, batch_size, is_streamed), arrays


def first_order(key: PRNGKeyArray, layout: DataLayout) -> RowOrder | None:
    """Returns the order before the first epoch, `None` if the compiled update needs none."""
    if layout.num_rows is None or layout.is_streamed:
        return None
    return RowOrder(key, jnp.arange(layout.num_rows))


def minibatch(
    layout: DataLayout,
    order: RowOrder | None,
    iteration: Scalar,
    arrays: tuple,
    streamed: tuple,
    spread: Spread | None,
) -> tuple[RowOrder | None, tuple]:
    """Returns the arrays of one iteration.

    Args:
        layout: the layout of the arguments.
        order: the current order of the rows.
        iteration: number of the iteration.
        arrays: whole arrays.
        streamed: the minibatches of the current chunk that come from the host.
        spread: the devices that share the rows.
    """
    if layout.is_streamed:
        place = iteration % CHUNK
        take = lambda x: jax.lax.dynamic_index_in_dim(x, place, keepdims=False)
        taken = rows_over_devices(spread, jax.tree.map(take, streamed))
        return order, eqx.combine(taken, arrays)
    if order is None:
        return None, arrays
    order, rows = next_rows(order, layout, iteration)
    rows = rows_over_devices(spread, rows)
    take = lambda x: rows_over_devices(spread, jnp.take(x, rows, axis=0))
    return order, layout.cut(arrays, take)


def next_rows(
    order: RowOrder, layout: DataLayout, iteration: Scalar
) -> tuple[RowOrder, Int[Array, " b"]]:
    """Returns the rows of an iteration's minibatch, permuted anew at the start of an epoch.

    An epoch's permutation depends on the key and the number of the epoch only, so that a key
    gives the same order wherever a run was interrupted.
    """
    number, size = layout.num_rows or 0, layout.batch_size or 1
    epoch, batch = jnp.divmod(iteration, number // size)
    draw = lambda: epoch_order(order.key, epoch, number)
    rows = jax.lax.cond(batch == 0, draw, lambda: order.rows)
    return order._replace(rows=rows), jax.lax.dynamic_slice_in_dim(rows, batch * size, size)


def epoch_order(key: PRNGKeyArray, epoch: Any, number: int) -> Int[Array, " n"]:
    """Returns the permutation of the data points in an epoch."""
    return jr.permutation(jr.fold_in(key, epoch), number)


class RowStream:
    """Reads the minibatches of the next chunk while the device computes.

    The order is that of an array in memory.

    Args:
        layout: the layout of the arguments.
        arrays: the arrays, of which those with one row per data point are read.
        order_keys: one key per seed.
        spread: each device is given its part of every minibatch, and a process reads only the
            parts of its own devices.
    """

    def __init__(
        self,
        layout: DataLayout,
        arrays: tuple,
        order_keys: Key[Array, " s"],
        spread: Spread | None,
    ):
        self._num_rows, self._batch_size = layout.num_rows or 0, layout.batch_size or 1
        self._spread = spread
        as_rows = lambda x: x if isinstance(x, Rows) else Rows(np.asarray(x))
        self._sources = [
            as_rows(x) if cut else None for x, cut in zip(arrays, layout.is_cut, strict=True)
        ]
        # A chunk may contain the end of one epoch and the start of the next.
        self._orders = [lru_cache(2)(partial(self._order, key)) for key in order_keys]
        self._thread = ThreadPoolExecutor(1, "relbo-rows")
        self._next: tuple[int, Future] | None = None

    def chunk(self, iteration: int, num_iterations: int) -> tuple:
        """Returns the minibatches of a chunk and starts to read those of the next."""
        found = self._next
        if found is None or found[0] != iteration:
            found = self._begin(iteration)
        block = found[1].result()
        following = iteration + CHUNK
        self._next = self._begin(following) if following < num_iterations else None
        return block

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, iteration: int) -> tuple[int, Future]:
        rows = np.stack([self._rows(order, iteration) for order in self._orders])
        is_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return iteration, self._thread.submit(self._read, rows, is_x64)

    def _order(self, key: PRNGKeyArray, epoch: int) -> Int[np.ndarray, " n"]:
        return np.asarray(epoch_order(key, epoch, self._num_rows))

    def _rows(self, order: Any, iteration: int) -> Int[np.ndarray, "chunk batch"]:
        size = self._batch_size
        numbers = range(iteration, iteration + CHUNK)
        places = (divmod(number, self._num_rows // size) for number in numbers)
        return np.stack([order(epoch)[at * size : (at + 1) * size] for epoch, at in places])

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
            dtype=jax.dtypes.canonicalize_dtype(source.dtype),
        )


def not_finite(call: Call) -> list[str]:
    """Names the arguments that contain NaN or infinity."""
    paths, _ = jax.tree_util.tree_flatten_with_path(call._asdict())
    return [
        jax.tree_util.keystr(path).removeprefix("['").replace("']", "", 1)
        for path, leaf in paths
        if isinstance(leaf, jax.Array)
        and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and not np.all(np.isfinite(np.asarray(leaf)))
    ]


def _common_length(arrays: tuple, batch_size: int) -> int:
    """Returns the number of data points: the leading length that most arrays share."""
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
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
