"""Brings a trainer its data: all at once, or a chunk ahead where they stay on disk."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from relbo._fitting.arguments import Layout, Sources, epoch_order
from relbo._fitting.trainer import CHUNK
from relbo._mesh import Spread, placed
from relbo.data._rows import Rows


class Memory:
    """Arrays that are on every device from the start."""

    def __init__(self, arrays: tuple, spread: Spread | None):
        self.arrays = placed(spread, arrays)

    def __call__(self, iteration: int, num_iterations: int) -> tuple:
        return self.arrays

    def close(self) -> None:
        pass


class Stream:
    """Minibatches in the order of an array in memory, read while the device computes.

    Args:
        layout: of the arguments.
        arrays: those that are not cut are used as they are.
        sources: where the rows of the others are.
        order_keys: one a seed.
        spread: each device is given its part of every minibatch, and a process reads no other.
    """

    def __init__(
        self,
        layout: Layout,
        arrays: tuple,
        sources: Sources,
        order_keys: list[PRNGKeyArray],
        spread: Spread | None,
    ):
        assert layout.num_rows is not None
        assert layout.batch_size is not None
        self._num_rows, self._batch_size = layout.num_rows, layout.batch_size
        self._sources, self._spread = sources, spread
        self._whole = tuple(
            placed(spread, x) if source is None else None
            for x, source in zip(arrays, sources, strict=True)
        )
        # A chunk may see the end of one epoch and the start of the next; not more are kept.
        self._orders = [lru_cache(2)(partial(self._order, key)) for key in order_keys]
        self._thread = ThreadPoolExecutor(1, "relbo-rows")
        self._next: tuple[int, Future] | None = None

    def __call__(self, iteration: int, num_iterations: int) -> tuple:
        """The minibatches of a chunk; those of the next one are read from now on."""
        found = self._next or self._begun(iteration)
        if found[0] != iteration:
            found = self._begun(iteration)
        block = found[1].result()
        following = iteration + CHUNK
        self._next = self._begun(following) if following < num_iterations else None
        return block

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begun(self, iteration: int) -> tuple[int, Future]:
        orders = np.stack([self._rows(order, iteration) for order in self._orders])
        is_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return iteration, self._thread.submit(self._read, orders, is_x64)

    def _order(self, key: PRNGKeyArray, epoch: int) -> Int[np.ndarray, " n"]:
        return np.asarray(epoch_order(key, epoch, self._num_rows))

    def _rows(self, order: Any, iteration: int) -> Int[np.ndarray, "chunk batch"]:
        size = self._batch_size
        numbers = range(iteration, iteration + CHUNK)
        places = (divmod(number, self._num_rows // size) for number in numbers)
        return np.stack([order(epoch)[at * size : (at + 1) * size] for epoch, at in places])

    def _read(self, orders: Int[np.ndarray, "seeds chunk batch"], is_x64: bool) -> tuple:
        pairs = zip(self._sources, self._whole, strict=True)
        with jax.enable_x64(is_x64):  # a thread does not inherit it
            return tuple(
                whole if source is None else self._block(source, orders)
                for source, whole in pairs
            )

    def _block(self, source: Rows, orders: Int[np.ndarray, "seeds chunk batch"]) -> Any:
        rows = orders if len(orders) > 1 else orders[0]
        if self._spread is None:
            return jnp.asarray(source.fetch(rows))
        return jax.make_array_from_callback(
            (*rows.shape, *source.shape[1:]),
            self._spread.along(self._batch_size, axis=rows.ndim - 1),
            # Of the other axes it is asked for all.
            lambda part: source.fetch(rows[part[: rows.ndim]]),  # type: ignore[index]
            dtype=jax.dtypes.canonicalize_dtype(source.dtype),
        )


def feed(
    layout: Layout,
    arrays: tuple,
    sources: Sources | None,
    order_keys: list[PRNGKeyArray],
    spread: Spread | None,
) -> Memory | Stream:
    if sources is None:
        return Memory(arrays, spread)
    return Stream(layout, arrays, sources, order_keys, spread)
