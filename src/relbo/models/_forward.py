"""The log likelihood of a hidden Markov chain, with its derivative written out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar


class _Expected(NamedTuple):
    """What the whole series says about the hidden states: the slopes of its likelihood."""

    initial: Float[Array, " k"]
    """p(z_1 | series)."""
    transitions: Float[Array, "k k"]
    """How often each transition is expected to have been taken."""
    states: Float[Array, "t k"]
    """p(z_t | series)."""


@jax.custom_jvp
def log_likelihood(
    log_initial: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
    evidence: Float[Array, "t k"],
) -> Scalar:
    """log p of a series; its derivative is the usual one, by expected counts."""
    return _either(_scaled_forward, _log_forward)(log_initial, log_transition, evidence)


@log_likelihood.defjvp
def _forward_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    value, expected = _expect(*primals)
    parts = zip(expected, tangents, strict=True)
    return value, sum((jnp.sum(slope * change) for slope, change in parts), start=jnp.zeros(()))


@jax.custom_jvp
def _expect(
    log_initial: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
    evidence: Float[Array, "t k"],
) -> tuple[Scalar, _Expected]:
    """log p of a series, and what it says about the states."""
    return _either(_scaled_expect, _log_expect)(log_initial, log_transition, evidence)


@_expect.defjvp
def _expect_jvp(primals: tuple, tangents: tuple) -> tuple:
    return jax.jvp(_log_expect, primals, tangents)


def _either(scaled: Callable, in_logs: Callable) -> Callable:
    """Probabilities as they are where that is safe, which is ten times faster, or their logs.

    Where no transition is nearly impossible no predicted state can underflow, so the state that
    explains a symbol best is always there. Otherwise one may be lost that later turns out to be
    the only one left.
    """

    @jax.custom_batching.custom_vmap
    def choose(log_initial: Array, log_transition: Array, evidence: Array) -> Any:
        rarest = 0.6 * np.log(np.finfo(log_transition.dtype).tiny)
        is_safe = jnp.min(log_transition) > rarest
        return jax.lax.cond(is_safe, scaled, in_logs, log_initial, log_transition, evidence)

    # A batch chooses as one: if each chain did, both would be computed for all of them.
    @choose.def_vmap
    def choose_for_all(size: int, is_batched: Any, *arguments: Array) -> tuple[Any, Any]:
        together = [
            value if batched else jnp.broadcast_to(value, (size, *value.shape))
            for value, batched in zip(arguments, is_batched, strict=True)
        ]
        out = _either(jax.vmap(scaled), jax.vmap(in_logs))(*together)
        return out, jax.tree.map(lambda _: True, out)

    return choose


def _scaled_filter(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, Float[Array, "t k"]]:
    """log p of a series, and p(z_t | x_1..x_t)."""
    transition = jnp.exp(log_transition)
    top = finite_or_zero(jnp.max(evidence, axis=1))

    # The loop is kept this small on purpose: XLA compiles such a one without a call a step.
    def step(predicted: Array, weights: Array) -> tuple[Array, Array]:
        joint = predicted * weights
        return (joint / _or_one(jnp.sum(joint))) @ transition, joint

    _, joint = jax.lax.scan(step, jnp.exp(log_initial), jnp.exp(evidence - top[:, None]))
    total = jnp.sum(joint, axis=1)
    return jnp.sum(jnp.log(total) + top), joint / _or_one(total)[:, None]


def _scaled_forward(log_initial: Array, log_transition: Array, evidence: Array) -> Scalar:
    return _scaled_filter(log_initial, log_transition, evidence)[0]


def _scaled_expect(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, _Expected]:
    value, filtered = _scaled_filter(log_initial, log_transition, evidence)
    transition = jnp.exp(log_transition)
    predicted = _or_one(filtered[:-1] @ transition)

    def step(following: Array, inputs: tuple) -> tuple[Array, Array]:
        filtered, predicted = inputs
        # p(z_t | z_{t+1}, past) shares out the probability of each next state.
        states = filtered * (transition @ (following / predicted))
        return states, states

    last = filtered[-1]
    _, states = jax.lax.scan(step, last, (filtered[:-1], predicted), reverse=True)
    states = jnp.concatenate([states, last[None]])
    transitions = transition * (filtered[:-1].T @ (states[1:] / predicted))
    return value, _Expected(states[0], transitions, states)


def _log_forward(log_initial: Array, log_transition: Array, evidence: Array) -> Scalar:
    def step(predicted: Array, evidence: Array) -> tuple[Array, Scalar]:
        _, term, following = forward_step(predicted, evidence, log_transition)
        return following, term

    return jnp.sum(jax.lax.scan(step, log_initial, evidence)[1])


def _log_expect(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, _Expected]:
    def forth(predicted: Array, evidence: Array) -> tuple[Array, tuple]:
        filtered, term, following = forward_step(predicted, evidence, log_transition)
        return following, (term, filtered, following)

    def back(carry: tuple[Array, Array], inputs: tuple) -> tuple[tuple, Array]:
        onward, counts = carry
        filtered, following = inputs
        share = filtered[:, None] + log_transition - finite_or_zero(following)[None]
        flow = jnp.exp(share) * onward[None]
        out = jnp.sum(flow, axis=1)
        here = out + jnp.exp(filtered) * (1.0 - jnp.sum(out))
        return (here, counts + flow), here

    _, (terms, filtered, following) = jax.lax.scan(forth, log_initial, evidence)
    nothing = (jnp.zeros_like(log_initial), jnp.zeros_like(log_transition))
    (first, counts), states = jax.lax.scan(back, nothing, (filtered, following), reverse=True)
    return jnp.sum(terms), _Expected(first, counts, states)


def _or_one(values: Array) -> Array:
    """What can be divided by; a NaN stays one."""
    return jnp.where(values == 0, 1.0, values)


def log_sum_exp(values: Array, axis: int = 0) -> Array:
    """log sum exp, minus infinity and without a gradient where all are minus infinity."""
    top = jax.lax.stop_gradient(finite_or_zero(jnp.max(values, axis=axis)))
    total = jnp.sum(jnp.exp(values - jnp.expand_dims(top, axis)), axis=axis)
    is_possible = total != 0  # not "> 0", which would hide a NaN
    return jnp.where(is_possible, jnp.log(jnp.where(is_possible, total, 1.0)) + top, -jnp.inf)


def finite_or_zero(values: Array) -> Array:
    return jnp.where(values == -jnp.inf, 0.0, values)


def forward_step(
    predicted: Float[Array, " k"],
    evidence: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
) -> tuple[Float[Array, " k"], Scalar, Float[Array, " k"]]:
    """Filtered states, log p of what was observed, and the states predicted next."""
    joint = predicted + evidence
    term = log_sum_exp(joint)
    # Normalised at every step, or a long series would eat the digits.
    filtered = joint - finite_or_zero(term)
    return filtered, term, log_sum_exp(filtered[:, None] + log_transition)
