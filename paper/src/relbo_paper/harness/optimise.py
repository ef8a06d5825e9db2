"""The training loop of the small experiments: a scan of optimiser updates."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.random as jr
import optax
from jaxtyping import Array, Float, Key, PyTree, Scalar

LogDensity = Callable[[PyTree], Scalar]


class Minimised(NamedTuple):
    """The result of `minimise`."""

    params: PyTree
    """After the last update."""
    losses: Float[Array, " iterations"]
    """Before each update."""
    watched: PyTree = None
    """What `watch` returned after each update, along a leading axis."""


def minimise(
    key: Key[Array, ""],
    loss_fn: Callable[[PyTree, Key[Array, ""]], Scalar],
    start: PyTree,
    optimiser: optax.GradientTransformation,
    *,
    num_iterations: int,
    watch: Callable[[PyTree], PyTree] | None = None,
) -> Minimised:
    """Minimises a stochastic loss by gradient descent; to be called under `jax.jit`.

    Args:
        key: a random key.
        loss_fn: the loss at given parameters and a random key.
        start: the initial parameters.
        optimiser: turns gradients into updates.
        num_iterations: number of updates.
        watch: returns what to record of the parameters after each update.
    """

    def update(carry: tuple[PyTree, PyTree], key: Key[Array, ""]) -> tuple[tuple, tuple]:
        params, state = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, key)
        updates, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (loss, None if watch is None else watch(params))

    begin = (start, optimiser.init(start))
    (params, _), (losses, watched) = jax.lax.scan(update, begin, jr.split(key, num_iterations))
    return Minimised(params, losses, watched)
