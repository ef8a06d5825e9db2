"""Spreads one axis of a program over devices: rows, draws, chains or test points."""

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

    The program is that of a single device; the compiler is only told where each part of it
    goes. As many devices as divide the length of the axis take a part of it each; the remaining
    devices repeat what these do.
    """

    mesh: Mesh

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @property
    def is_shared(self) -> bool:
        """Returns whether other processes take part."""
        return self.mesh.is_multi_process

    def along(self, length: int, axis: int = 0) -> NamedSharding:
        """Returns where the parts of an axis go."""
        shards = math.gcd(length, self.num_devices)
        mesh = Mesh(self.mesh.devices.reshape(shards, -1), (SHARDS, COPIES))
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, SHARDS))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def rows(self, tree: PyTree) -> PyTree:
        """Spreads values along their leading axis, inside a compiled program."""
        put = jax.lax.with_sharding_constraint
        return jax.tree.map(lambda x: put(x, self.along(x.shape[0])), tree)

    def whole(self, tree: PyTree) -> PyTree:
        """Copies values to every device, inside a compiled program."""
        return jax.lax.with_sharding_constraint(tree, self.everywhere)

    def map(self, function: Callable, inputs: PyTree) -> PyTree:
        """Maps a function like `jax.vmap`, with the work spread over the devices."""
        return self.rows(jax.vmap(function)(self.rows(inputs)))

    def placed(self, tree: PyTree) -> PyTree:
        """Copies values of the host, the same in every process, to every device."""
        return jax.tree.map(self._place, tree)

    def _place(self, leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.wrap_key_data(self._place(jr.key_data(leaf)), impl=jr.key_impl(leaf))
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, self.everywhere, values.__getitem__)


def spread_over(mesh: Mesh | None) -> Spread | None:
    """Returns how to use a mesh, or `None` for the one device that is used by default.

    Args:
        mesh: the devices; by default all devices of this process, or of all processes that
            `jax.distributed.initialize` connects.
    """
    if mesh is None:
        if jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
            return None
        mesh = Mesh(np.array(jax.devices()), (SHARDS,))
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh: expected a jax.sharding.Mesh, got {type(mesh).__name__}; write "
            'jax.sharding.Mesh(devices, ("devices",))'
        )
    # Only one axis is ever spread, so the mesh is flattened.
    mesh = Mesh(mesh.devices.reshape(-1), (SHARDS,))
    if _is_usual(mesh):
        return None
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) > 1 and len(processes) < jax.process_count():
        raise ValueError(
            f"mesh: expected devices of one or of all {jax.process_count()} processes, got "
            f"those of {len(processes)}; use jax.devices(), or jax.local_devices()"
        )
    if jax.process_index() not in processes:
        raise ValueError(
            "mesh: expected a device of this process, got none; use jax.local_devices()"
        )
    return Spread(mesh)


def rows(spread: Spread | None, tree: PyTree) -> PyTree:
    """Spreads values along their leading axis; does nothing on one device."""
    return tree if spread is None else spread.rows(tree)


def placed(spread: Spread | None, tree: PyTree) -> PyTree:
    """Copies values to every device; does nothing on one device."""
    return tree if spread is None else spread.placed(tree)


def placed_arrays(spread: Spread | None, tree: Any) -> Any:
    """Copies the arrays of a pytree to every device and leaves other leaves alone."""
    if spread is None:
        return tree
    is_array = lambda leaf: isinstance(leaf, jax.Array | np.ndarray)
    return jax.tree.map(lambda leaf: spread.placed(leaf) if is_array(leaf) else leaf, tree)


def local(spread: Spread | None, tree: PyTree) -> PyTree:
    """Converts values that are on every device to ordinary arrays of this process."""
    return tree if spread is None else jax.tree.map(_of_this_process, tree)


def agreed(spread: Spread | None, decision: bool) -> bool:
    """Returns the decision of process 0: a process that stops alone would hang the others."""
    if spread is None or not spread.is_shared:
        return decision
    return bool(multihost_utils.broadcast_one_to_all(np.array(decision)))


def is_past(spread: Spread | None, deadline: float) -> bool:
    """Returns whether a time of `time.monotonic` has passed, the same in all processes."""
    return deadline < math.inf and agreed(spread, time.monotonic() > deadline)


@contextlib.contextmanager
def together(spread: Spread | None, what: str, advice: str) -> Iterator[None]:
    """Explains errors that are due to the end of another process."""
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
    """Returns whether this is the single default device."""
    return mesh.size == 1 and mesh.devices.item() == jax.device_put(np.zeros(())).device


def _of_this_process(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jr.wrap_key_data(_of_this_process(jr.key_data(leaf)), impl=jr.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
