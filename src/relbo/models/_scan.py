"""Scans over time that keep little for the backward pass."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

LONGEST_KEPT = 2_048
"""Up to this many steps everything is kept: computing it again would cost more time."""


def scan_over_time(
    step: Callable[[Any, Any], tuple[Any, Any]], start: PyTree, inputs: PyTree
) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan`, except that the gradient of a long series keeps little.

    Of a long series the backward pass keeps the carry at every sqrt(T)-th step and computes
    each stretch between two of them again, so that memory grows with sqrt(T).
    """
    length = jax.tree.leaves(inputs)[0].shape[0]
    if length <= LONGEST_KEPT:
        return jax.lax.scan(step, start, inputs)
    stretch = math.isqrt(length)
    whole = length - length % stretch
    stretches = jax.tree.map(
        lambda leaf: leaf[:whole].reshape(-1, stretch, *leaf.shape[1:]), inputs
    )
    rest = jax.tree.map(lambda leaf: leaf[whole:], inputs)
    run = jax.checkpoint(lambda carry, part: jax.lax.scan(step, carry, part))
    carry, outputs = jax.lax.scan(run, start, stretches)
    carry, last = jax.lax.scan(step, carry, rest)

    def join(many: Any, few: Any) -> Any:
        return jnp.concatenate([many.reshape(whole, *many.shape[2:]), few])

    return carry, jax.tree.map(join, outputs, last)
