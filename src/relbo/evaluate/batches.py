"""Maps a function over draws or data points, in batches and over devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

from relbo._devices import Spread, placed_arrays, spread_over
from relbo.core.random import KeyLike, as_key


def map_with_keys(
    key: KeyLike,
    function: Callable,
    number: int,
    *inputs: PyTree,
    batch_size: int,
    mesh: Mesh | None,
) -> Any:
    """Compiles `function(key, *input)` and calls it with a number of keys and inputs.

    Args:
        key: a random key or an integer seed, which is split into one key for each call.
        function: an `equinox.Partial`, whose arrays are arguments of the compiled program, so
            that others of the same shapes need no new compilation.
        number: number of calls.
        inputs: their inputs, along the leading axis of each leaf.
        batch_size: number of calls at a time.
        mesh: the devices that share them.
    """
    spread = spread_over(mesh)
    typed_key, function, inputs = placed_arrays(spread, (as_key(key), function, inputs))
    return _map_with_keys(typed_key, function, inputs, number, batch_size, spread)


@eqx.filter_jit
def _map_with_keys(
    key: PRNGKeyArray,
    function: Callable,
    inputs: tuple,
    number: int,
    batch_size: int,
    spread: Spread | None,
) -> Any:
    call = lambda arguments: function(*arguments)
    return map_batched(call, (jr.split(key, number), *inputs), batch_size, spread)


def map_batched(
    function: Callable, inputs: Any, batch_size: int, spread: Spread | None = None
) -> Any:
    """Applies `jax.vmap` in batches, one after the other, to bound memory.

    `jax.lax.map` compiles the last, smaller batch separately; this function pads it instead.

    Args:
        function: a function of one input.
        inputs: the inputs, along the leading axis.
        batch_size: number of inputs at a time.
        spread: devices that share each batch, which is enlarged to a multiple of their number.
    """
    number = jax.tree.leaves(inputs)[0].shape[0]
    batch_size = min(batch_size, number)
    if spread is not None:
        batch_size = -(-batch_size // spread.num_devices) * spread.num_devices
    num_batches = -(-number // batch_size)
    index = jnp.arange(num_batches * batch_size) % number
    take = partial(jnp.take, indices=index, axis=0)
    filled = jax.tree.map(take, inputs)
    batched = lambda leaf: leaf.reshape(num_batches, batch_size, *leaf.shape[1:])
    apply = jax.vmap(function) if spread is None else partial(spread.map, function)
    outputs = jax.lax.map(apply, jax.tree.map(batched, filled))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number], outputs)
    return flat if spread is None else spread.whole(flat)
