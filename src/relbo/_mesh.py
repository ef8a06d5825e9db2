"""One axis of a program spread over devices: rows, particles, chains or test points."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

SHARDS, COPIES = "shards", "copies"


class Spread(NamedTuple):
    """Devices that share the work along the leading axis of some arrays.

    The program is the one that a single device runs; the compiler is only told where each part
    of it should be. As many devices as divide the length of the axis take a part of it each;
    where that is not all of them, the others repeat what these do.
    """

    mesh: Mesh

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @property
    def is_shared(self) -> bool:
        """Whether other processes take part."""
        return self.mesh.is_multi_process

    def along(self, length: int, axis: int = 0) -> NamedSharding:
        """Where the parts of an axis go."""
        shards = math.gcd(length, self.num_devices)
        mesh = Mesh(self.mesh.devices.reshape(shards, -1), (SHARDS, COPIES))
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, SHARDS))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def rows(self, tree: PyTree) -> PyTree:
        """The same values inside a compiled program, spread along the leading axis."""
        put = jax.lax.with_sharding_constraint
        return jax.tree.map(lambda x: put(x, self.along(x.shape[0])), tree)

    def whole(self, tree: PyTree) -> PyTree:
        """The same values inside a compiled program, all of them on every device."""
        return jax.lax.with_sharding_constraint(tree, self.everywhere)

    def map(self, function: Callable, inputs: PyTree) -> PyTree:
        """`jax.vmap` with the work spread over the devices."""
        return self.rows(jax.vmap(function)(self.rows(inputs)))

    def placed(self, tree: PyTree) -> PyTree:
        """Values of the host, which must be those of every process, on every device."""
        return jax.tree.map(self._place, tree)

    def _place(self, leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.wrap_key_data(self._place(jr.key_data(leaf)), impl=jr.key_impl(leaf))
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, self.everywhere, values.__getitem__)


def spread_over(mesh: Mesh | None) -> Spread | None:
    """How to use a mesh; `None` for the one device that would be used anyway.

    Args:
        mesh: by default all devices: those of this process, or of all processes that
            `jax.distributed.initialize` has brought together.
    """
    if mesh is None:
        if jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
            return None
        mesh = Mesh(np.array(jax.devices()), (SHARDS,))
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh: expected a jax.sharding.Mesh, got {type(mesh).__name__}; for some devices "
            'say jax.sharding.Mesh(devices, ("devices",))'
        )
    # One axis, whatever the user's are called: all that is spread is one axis long.
    mesh = Mesh(mesh.devices.reshape(-1), (SHARDS,))
    if _is_usual(mesh):
        return None
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1 and len(processes) < jax.process_count():
        raise ValueError(
            f"mesh: it has devices of {len(processes)} of {jax.process_count()} processes; "
            "take jax.devices() for all of them, or jax.local_devices() for this one"
        )
    if jax.process_index() not in processes:
        raise ValueError(
            "mesh: none of its devices belongs to this process; take jax.local_devices()"
        )
    return Spread(mesh)


def rows(spread: Spread | None, tree: PyTree) -> PyTree:
    """Spread along the leading axis, or as it is on one device."""
    return tree if spread is None else spread.rows(tree)


def placed(spread: Spread | None, tree: PyTree) -> PyTree:
    """On every device, or as it is on one."""
    return tree if spread is None else spread.placed(tree)


def placed_arrays(spread: Spread | None, tree: Any) -> Any:
    """The arrays among some arguments on every device, and the rest as it is."""
    if spread is None:
        return tree
    is_array = lambda leaf: isinstance(leaf, jax.Array | np.ndarray)
    return jax.tree.map(lambda leaf: spread.placed(leaf) if is_array(leaf) else leaf, tree)


def local(spread: Spread | None, tree: PyTree) -> PyTree:
    """What is on every device, as ordinary arrays of this process."""
    return tree if spread is None else jax.tree.map(_of_this_process, tree)


def agreed(spread: Spread | None, decision: bool) -> bool:
    """What process 0 decides: clocks differ, and a process that stops alone would hang all."""
    if spread is None or not spread.is_shared:
        return decision
    return bool(multihost_utils.broadcast_one_to_all(np.array(decision)))


def is_past(spread: Spread | None, deadline: float) -> bool:
    """Whether a time of `time.monotonic` has come, for all processes or for none."""
    return deadline < math.inf and agreed(spread, time.monotonic() > deadline)


@contextlib.contextmanager
def together(spread: Spread | None, what: str, advice: str) -> Iterator[None]:
    """Says what has happened where another process of a run has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if spread is None or not spread.is_shared:
            raise
        raise RuntimeError(
            f"{what}: another process of this run has ended or cannot be reached "
            f"({str(error)[:200]}); {advice}"
        ) from error


def _is_usual(mesh: Mesh) -> bool:
    """Whether this is the one device on which everything runs by default."""
    return mesh.size == 1 and mesh.devices.item() == jnp.zeros(()).device


def _of_this_process(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jr.wrap_key_data(_of_this_process(jr.key_data(leaf)), impl=jr.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
