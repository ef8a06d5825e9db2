"""Scans over time that keep little for the backward pass."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

Step = Callable[[Any, Any], tuple[Any, Any]]

LONGEST_KEPT = 2_048
"""Up to this many steps everything is kept: computing it again would cost more time."""


def scan_over_time(step: Step, start: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan`, except that the gradient of a long series keeps little.

    Of a long series the backward pass keeps the carry at every sqrt(T)-th step and computes
    each stretch between two of them again, so that memory grows with sqrt(T).
    """
    length = jax.tree.leaves(inputs)[0].shape[0]
    if length <= LONGEST_KEPT:
        return jax.lax.scan(step, start, inputs)
    stretches, rest = _cut(inputs, math.isqrt(length))
    run = jax.checkpoint(lambda carry, part: jax.lax.scan(step, carry, part))
    carry, outputs = jax.lax.scan(run, start, stretches)
    carry, last = jax.lax.scan(step, carry, rest)

    return carry, jax.tree.map(_join, outputs, last)


def there_and_back(
    forth: Step, back: Step, weigh: Callable, start: PyTree, end: PyTree, inputs: PyTree
) -> tuple[Any, PyTree, PyTree]:
    """A scan over time and one back, which needs to know where the first one was.

    As in `scan_over_time`, a long series is gone through once more in stretches.

    Args:
        forth: from a carry and inputs to the next carry and an output.
        back: from a carry and (the carry before the step, what `weigh` says of it, inputs) to
            the carry before and an output.
        weigh: from all outputs of `forth` to a value, and to what `back` needs of each step.
        start: the first carry of `forth`.
        end: the first carry of `back`.
        inputs: along a leading axis of time.

    Returns:
        The value, the last carry of `back`, and its outputs.
    """

    def forth_keeping(carry: PyTree, part: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        following, out = forth(carry, part)
        return following, (carry, out)

    length = jax.tree.leaves(inputs)[0].shape[0]
    if length <= LONGEST_KEPT:
        _, (carries, outputs) = jax.lax.scan(forth_keeping, start, inputs)
        value, weights = weigh(outputs)
        return value, *jax.lax.scan(back, end, (carries, weights, inputs), reverse=True)

    def forth_stretch(carry: PyTree, part: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        following, outputs = jax.lax.scan(forth, carry, part)
        return following, (carry, outputs)

    def back_stretch(carry: PyTree, part: PyTree) -> tuple[PyTree, PyTree]:
        first, weights, inputs = part
        _, (carries, _) = jax.lax.scan(forth_keeping, first, inputs)
        return jax.lax.scan(back, carry, (carries, weights, inputs), reverse=True)

    stretches, rest = _cut(inputs, math.isqrt(length))
    carry, (firsts, outputs) = jax.lax.scan(forth_stretch, start, stretches)
    _, (last, last_outputs) = forth_stretch(carry, rest)
    value, weights = weigh(jax.tree.map(_join, outputs, last_outputs))
    weights, last_weights = _cut(weights, math.isqrt(length))
    carry, last_out = back_stretch(end, (last, last_weights, rest))
    carry, out = jax.lax.scan(back_stretch, carry, (firsts, weights, stretches), reverse=True)
    return value, carry, jax.tree.map(_join, out, last_out)


def _cut(inputs: PyTree, stretch: int) -> tuple[PyTree, PyTree]:
    """Stretches of one length along a leading axis, and the rest."""
    length = jax.tree.leaves(inputs)[0].shape[0]
    whole = length - length % stretch
    cut = lambda leaf: leaf[:whole].reshape(-1, stretch, *leaf.shape[1:])
    return jax.tree.map(cut, inputs), jax.tree.map(lambda leaf: leaf[whole:], inputs)


def _join(many: Any, few: Any) -> Any:
    return jnp.concatenate([many.reshape(-1, *many.shape[2:]), few])
