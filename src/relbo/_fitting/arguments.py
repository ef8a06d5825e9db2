"""A program's arguments: what is data, what is fixed, and which rows a minibatch takes."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, Scalar

from relbo._program import Call
from relbo.data._rows import Rows


class Layout(NamedTuple):
    """All of a call but its arrays; hashable, so that equal layouts share what is compiled."""

    structure: Any
    constants: tuple
    """What is not data, with `None` where an array goes."""
    is_array: tuple[bool, ...]
    is_cut: tuple[bool, ...]
    """Of the arrays: which have one row a data point."""
    num_rows: int | None
    """How many data points there are, `None` without minibatches."""
    batch_size: int | None
    is_streamed: bool = False
    """Whether the rows come from the host, a chunk at a time."""

    def call(self, arrays: tuple, rows: Array | None = None) -> Call:
        """The call with its arrays; of those that are cut, only some rows."""
        if rows is not None:
            arrays = self.cut(arrays, lambda x: jnp.take(x, rows, axis=0))
        filled = iter(arrays)
        both = zip(self.constants, self.is_array, strict=True)
        leaves = [next(filled) if is_array else _inside(value) for value, is_array in both]
        return jax.tree.unflatten(self.structure, leaves)

    def first_call(self, arrays: tuple) -> Call:
        """The call, or that of a first minibatch, to set things up with."""
        is_cut_here = self.batch_size is not None and not self.is_streamed
        rows = jnp.arange(self.batch_size) if is_cut_here else None
        return self.call(arrays, rows)

    def cut(self, arrays: tuple, take: Callable[[Any], Any]) -> tuple:
        """The arrays, with the rows that are taken of those that have one a data point."""
        return tuple(take(x) if c else x for x, c in zip(arrays, self.is_cut, strict=True))

    @property
    def seed_axes(self) -> tuple[int | None, ...]:
        """Of streamed arrays: each seed has its own order of the data."""
        return tuple(0 if is_cut else None for is_cut in self.is_cut)

    def pinned(self, arrays: tuple) -> "Layout":
        """The same call with its arrays as constants, for a program that looks at them."""
        if self.batch_size is not None:
            raise ValueError(
                "batch_size: the model looks at the values of its arguments while it is traced "
                "(an `if`, an `int(...)` or NumPy on them), so it cannot be given minibatches; "
                "use jax.numpy on them, or hand in as Python numbers what is a number"
            )
        leaves = jax.tree.leaves(self.call(arrays))
        never = (False,) * len(leaves)
        return Layout(self.structure, tuple(map(Constant, leaves)), never, (), None, None)


class Constant:
    """Something that is compared by identity, so that it can be hashed."""

    def __init__(self, value: Any):
        self.value = value


class Order(NamedTuple):
    """In which order the data points are visited."""

    key: PRNGKeyArray
    rows: Int[Array, " n"]
    """The permutation of this epoch."""


Sources = tuple[Rows | None, ...]
"""Of the arrays: where the rows come from, `None` for one that is not cut."""


def split_call(
    args: tuple, kwargs: dict[str, Any] | None, batch_size: int | None
) -> tuple[Layout, tuple]:
    """Parts a call into its layout and its arrays, those that stay on disk included."""
    leaves, structure = jax.tree.flatten(Call(tuple(args), dict(kwargs or {})))
    leaves = [_plain(leaf) for leaf in leaves]
    is_array = tuple(map(_is_data, leaves))
    is_streamed = any(isinstance(leaf, Rows) for leaf in leaves)
    if is_streamed and batch_size is None:
        raise ValueError("batch_size: relbo.data.Rows are read in minibatches; say how large")
    arrays = tuple(
        x if isinstance(x, Rows) else jnp.asarray(x)
        for x, a in zip(leaves, is_array, strict=True)
        if a
    )
    constants = tuple(
        None if a else _hashable(x) for x, a in zip(leaves, is_array, strict=True)
    )
    num_rows = None if batch_size is None else _common_length(arrays, batch_size)
    is_cut = tuple(num_rows is not None and x.shape[:1] == (num_rows,) for x in arrays)
    layout = Layout(structure, constants, is_array, is_cut, num_rows, batch_size, is_streamed)
    return layout, arrays


def opened(layout: Layout, arrays: tuple) -> tuple[tuple, Sources | None]:
    """The arrays in memory, and where the others come from; `None` where there are no others.

    A first minibatch stands for those that are streamed.
    """
    if not layout.is_streamed:
        return arrays, None
    sources = _sources(arrays, layout)
    first = np.arange(layout.batch_size or 0)
    shown = tuple(
        x if source is None else jnp.asarray(source.fetch(first))
        for x, source in zip(arrays, sources, strict=True)
    )
    return shown, sources


def _sources(arrays: tuple, layout: Layout) -> Sources:
    for x, is_cut in zip(arrays, layout.is_cut, strict=True):
        if isinstance(x, Rows) and not is_cut:
            raise ValueError(
                f"args: {x} has {len(x)} rows, and the data points are {layout.num_rows}: all "
                "relbo.data.Rows of a call must have one row a data point"
            )
    as_rows = lambda x: x if isinstance(x, Rows) else Rows(np.asarray(x))
    return tuple(
        as_rows(x) if is_cut else None for x, is_cut in zip(arrays, layout.is_cut, strict=True)
    )


def first_order(key: PRNGKeyArray, layout: Layout) -> Order | None:
    if layout.num_rows is None or layout.is_streamed:
        return None
    return Order(key, jnp.arange(layout.num_rows))


def next_rows(
    order: Order | None, layout: Layout, iteration: Scalar
) -> tuple[Order | None, Array | None]:
    """The rows of an iteration's minibatch; a new permutation where an epoch begins.

    An epoch's permutation comes from the key and the epoch's number alone, so that a key gives
    one order whatever happened before.
    """
    if order is None or layout.num_rows is None or layout.batch_size is None:
        return None, None
    number, size = layout.num_rows, layout.batch_size
    epoch, batch = jnp.divmod(iteration, number // size)
    draw = lambda: epoch_order(order.key, epoch, number)
    rows = jax.lax.cond(batch == 0, draw, lambda: order.rows)
    chosen = jax.lax.dynamic_slice_in_dim(rows, batch * size, size)
    return order._replace(rows=rows), chosen


def epoch_order(key: PRNGKeyArray, epoch: Any, number: int) -> Int[Array, " n"]:
    return jr.permutation(jr.fold_in(key, epoch), number)


def not_finite(arrays: tuple, layout: Layout) -> list[str]:
    """Where in the arguments there is a NaN or an infinity."""
    paths, _ = jax.tree_util.tree_flatten_with_path(layout.call(arrays)._asdict())
    return [
        jax.tree_util.keystr(path).removeprefix("['").replace("']", "", 1)
        for path, leaf in paths
        if _is_data(leaf)
        and jnp.issubdtype(leaf.dtype, jnp.inexact)
        and not np.all(np.isfinite(np.asarray(leaf)))
    ]


def shapes_of(arrays: tuple) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((x.shape, str(x.dtype)) for x in arrays)


def digest(arrays: Any) -> str:
    """A short name for the contents of arrays."""
    words = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        leaf = np.asarray(plain_key(leaf))
        words.update(f"{leaf.dtype}{leaf.shape}".encode())
        words.update(np.ascontiguousarray(leaf).tobytes())
    return words.hexdigest()[:16]


def is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def plain_key(leaf: Any) -> Any:
    """The words of a typed key; anything else as it is."""
    return jr.key_data(leaf) if is_key(leaf) else leaf


def typed_key(key: Any) -> PRNGKeyArray:
    """A key of the new kind, from either kind."""
    return key if is_key(key) else jr.wrap_key_data(key)


def _plain(leaf: Any) -> Any:
    """NumPy's whole numbers are sizes more often than data."""
    if isinstance(leaf, np.integer | np.bool_):
        return leaf.item()
    return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf


def _is_data(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biufcV"
    return isinstance(leaf, jax.Array | Rows)


def _inside(value: Any) -> Any:
    return value.value if isinstance(value, Constant) else value


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return Constant(value)
    return value


def _common_length(arrays: tuple, batch_size: int) -> int:
    """The number of data points: the leading length that most arrays share."""
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    lengths = Counter(x.shape[0] for x in arrays if x.ndim > 0 and x.shape[0] >= batch_size)
    if not lengths:
        found = [x.shape for x in arrays]
        raise ValueError(
            f"batch_size: no argument of the model has {batch_size} rows or more to cut a "
            f"minibatch from; the arrays among them have shapes {found}"
        )
    (length, count), *others = lengths.most_common()
    if others and others[0][1] == count:
        raise ValueError(
            f"batch_size: the arguments have leading lengths {sorted(lengths)}, and it is not "
            "clear which of them is the number of data points: hand in only arrays with one "
            "row a data point, and let the model know the others"
        )
    return length
