"""The loop over steps: one gradient per point and one trace, for all kernels and accounts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from relbo.core.kernels import Departure
from relbo.core.parameters import split_per_step, with_known_values

if TYPE_CHECKING:
    from relbo.core.refinement import Refinement


MAX_GRADIENT = 5.0
"""The largest gradient of a draw in a coordinate of a walk with bounded scores."""


class RESULTS(eqx.Enumeration):
    """How a walk ended."""

    successful = ""
    non_finite_start = (
        "the log density or its gradient is not finite where the walk starts: check the model "
        "there, or start the base somewhere else"
    )
    non_finite_gradient = (
        "the log density or its gradient became non-finite during the walk; the last good "
        "position is kept: a smaller step size usually helps"
    )
    non_finite_objective = "the objective is NaN where the walk ended"
    non_finite_position = (
        "the last step led to a non-finite position; the last good position is kept: a "
        "smaller step size usually helps"
    )


@dataclass(frozen=True)
class Execution:
    """How the steps are computed: it changes time and memory, and no value.

    Args:
        remat: keeps only the positions for the backward pass and computes the steps again.
        unroll: compiles the steps one after another instead of as a loop. This is faster for a
            few steps of an expensive density, such as one with large networks, because the
            backward pass copies less. A cheap density becomes slower, and compilation takes
            longer.
        forward_mode_differentiation: computes the score in forward mode, for a log density with
            primitives that have no reverse mode, such as `while_loop`. It costs one pass per
            coordinate.
    """

    remat: bool = False
    unroll: bool = False
    forward_mode_differentiation: bool = False


class Walk(NamedTuple):
    """The result of T steps."""

    position: Array
    log_q: Scalar
    """The contribution of the steps to log q."""
    logdensity: Scalar
    """At the last evaluated position, which is the final one where reverse moves count."""
    result: RESULTS
    one_to_one: Bool[Array, ""]
    path: Array | None = None
    """The positions after each step, along a leading axis, if they were kept."""


class _Evaluation(NamedTuple):
    logdensity: Scalar
    score: Array
    base_score: Array | None

    def force(self, inverse_temperature: Scalar, max_score: float | None) -> Array:
        """Returns the field that the kernel follows, in a step and in its reverse."""
        force = self.score
        if self.base_score is not None:
            force = inverse_temperature * force + (1 - inverse_temperature) * self.base_score
        return force if max_score is None else max_score * jnp.tanh(force / max_score)

    def is_finite(self, *, with_value: bool) -> Bool[Array, ""]:
        # In one reduction: XLA would compute the value again wherever the answer is used.
        checked = jnp.ravel(self.score)
        if with_value:
            checked = jnp.append(checked, self.logdensity)
        return jnp.all(jnp.isfinite(checked))


class _Carry(NamedTuple):
    position: Array
    memory: PyTree
    log_q: Scalar
    logdensity: Scalar
    last_good: Array
    result: RESULTS
    one_to_one: Bool[Array, ""]


class _Step(NamedTuple):
    """The inputs of one turn of the loop."""

    turn: Array
    noise: Array | None
    probe_key: PRNGKeyArray | None
    behind: PyTree
    """The per-step parameters of the kernel in the step that is being completed."""
    ahead: PyTree
    """The per-step parameters of the kernel in the next step."""
    temperature_behind: Scalar
    temperature_ahead: Scalar


def walk(
    refinement: "Refinement",
    key: PRNGKeyArray,
    position: Array,
    logdensity_fn: Callable[[Array], Scalar],
    base_logdensity_fn: Callable[[Array], Scalar],
    *,
    max_score: float | None = None,
    keeps_path: bool = False,
) -> Walk:
    """Walks T steps from `position` (`[d]`, or `[k, d]` for interacting particles).

    A turn of the loop evaluates the density at the current point, completes the step that led
    there and takes the next one. Every point is therefore evaluated once and the density is
    traced once. The first turn completes no step and, where the account needs the score at the
    end, a last turn takes no step.
    """
    kernel, account = with_known_values(refinement.kernel), refinement.account
    num_moves = refinement.num_steps * kernel.evaluations_per_step
    changing, constant = split_per_step(kernel)
    noise_key, probe_key = jr.split(key) if account.counts_volume else (key, key)
    noise = None
    if kernel.randomness != "none":
        # For the start, for each move and for the last turn. Outside the loop this compiles to
        # one generator and runs as one vectorised call.
        noise = jr.normal(noise_key, (num_moves + 2, *position.shape), position.dtype)
    evaluate = _evaluator(refinement, logdensity_fn, base_logdensity_fn)
    is_forward_mode = refinement.execution.forward_mode_differentiation
    is_capped = refinement.space == "whitened" and max_score is not None
    bounds_gradients = is_capped and not is_forward_mode

    def turn(carry: _Carry, step: _Step) -> tuple[_Carry, Array | None]:
        carry = _with_bounded_gradients(carry) if bounds_gradients else carry
        behind = eqx.combine(constant, step.behind)
        ahead = eqx.combine(constant, step.ahead)

        def leave(at: Array) -> tuple[Array, tuple[_Evaluation, Scalar, Departure]]:
            evaluation = evaluate(at)
            force = evaluation.force(step.temperature_behind, max_score)
            arrived = behind.arrive(at, force, carry.memory)
            memory = _where(step.turn > 0, arrived.memory, carry.memory)
            force = evaluation.force(step.temperature_ahead, max_score)
            departure = ahead.depart(step.noise, at, force, memory)
            return departure.position, (evaluation, arrived.log_reverse, departure)

        left = account.leave(step.probe_key, leave, carry.position)
        evaluation, log_reverse, departure = left.kept
        # Steps need the score only: the value is not computed where it is not used.
        is_finite = evaluation.is_finite(with_value=account.counts_reverse)
        alive = (carry.result == RESULTS.successful) & is_finite
        arrives = alive & (step.turn > 0)
        moves = alive & (step.turn < num_moves)
        log_q = carry.log_q
        if account.counts_reverse:
            log_q = log_q - jnp.where(arrives, log_reverse, 0.0)
        if account.counts_forward:
            log_q = log_q + jnp.where(moves, departure.log_forward, 0.0)
        if account.counts_volume:
            log_q = log_q - jnp.where(moves, left.log_volume, 0.0)
        stays = jnp.where(alive, carry.position, carry.last_good)
        position = jnp.where(moves, departure.position, stays)
        return _Carry(
            position=position,
            memory=_where(moves, departure.memory, carry.memory),
            log_q=log_q,
            logdensity=jnp.where(alive, evaluation.logdensity, carry.logdensity),
            last_good=stays,
            result=_after_evaluation(carry.result, is_finite, step.turn),
            one_to_one=carry.one_to_one & left.one_to_one,
        ), (position if keeps_path else None)

    zero = jnp.zeros((), position.dtype)
    start = _Carry(
        position=position,
        memory=kernel.init(None if noise is None else noise[0], position),
        log_q=zero,
        logdensity=zero,
        last_good=position,
        result=RESULTS.successful,
        one_to_one=jnp.array(True),
    )
    if refinement.execution.remat:
        turn = jax.checkpoint(turn, prevent_cse=False)
    num_turns = num_moves + int(account.counts_reverse)
    steps = _steps(refinement, changing, num_turns, position.dtype)._replace(
        noise=None if noise is None else noise[1 : num_turns + 1],
        probe_key=jr.split(probe_key, num_turns) if account.counts_volume else None,
    )
    end, path = jax.lax.scan(turn, start, steps, unroll=refinement.execution.unroll)
    end = _with_bounded_gradients(end) if bounds_gradients else end
    if path is not None:
        every = kernel.evaluations_per_step
        path = path[every - 1 : num_moves : every]
    return _end(end)._replace(path=path)


@jax.custom_vjp
def _bounded_gradient(value: Array) -> Array:
    return value


_bounded_gradient.defvjp(
    lambda value: (value, None),
    lambda _, slope: (jnp.clip(slope, -MAX_GRADIENT, MAX_GRADIENT),),
)


def _with_bounded_gradients(carry: _Carry) -> _Carry:
    """Bounds the gradient that reaches a step from those after it.

    Where a density narrows, steps amplify small differences, and now and then the gradient of
    one draw is ten thousand times that of others. Adam would then move every parameter by many
    learning rates, and hardly at all for a thousand iterations after.
    """
    guard = lambda x: _bounded_gradient(x) if eqx.is_inexact_array(x) else x
    memory = jax.tree.map(guard, carry.memory)
    return carry._replace(position=guard(carry.position), memory=memory)


def _evaluator(
    refinement: "Refinement",
    logdensity_fn: Callable[[Array], Scalar],
    base_logdensity_fn: Callable[[Array], Scalar],
) -> Callable[[Array], _Evaluation]:
    def evaluate_one(position: Array) -> _Evaluation:
        if refinement.execution.forward_mode_differentiation:
            twice = lambda z: (lambda value: (value, value))(logdensity_fn(z))
            score, logdensity = jax.jacfwd(twice, has_aux=True)(position)
        else:
            logdensity, score = jax.value_and_grad(logdensity_fn)(position)
        is_annealed = refinement.anneal is not None
        base_score = jax.grad(base_logdensity_fn)(position) if is_annealed else None
        return _Evaluation(logdensity, score, base_score)

    def evaluate_together(position: Array) -> _Evaluation:
        each = jax.vmap(evaluate_one)(position)
        return each._replace(logdensity=jnp.sum(each.logdensity))

    return evaluate_together if refinement.kernel.interacting else evaluate_one


def _steps(
    refinement: "Refinement",
    changing: PyTree,
    num_turns: int,
    dtype: jnp.dtype,
) -> _Step:
    every = refinement.kernel.evaluations_per_step

    def schedule(values: Array, delay: int) -> Array:
        # Slices instead of indices: these would compile to gathers, and to scatters in the
        # backward pass, which take longer than the rest of a short walk.
        each = jnp.repeat(values, every, axis=0)
        # Steps beyond the end of a schedule use its last value.
        missing = max(num_turns - delay - len(each), 0)
        margins = [(delay, missing)] + [(0, 0)] * (each.ndim - 1)
        return jnp.pad(each, margins, mode="edge")[:num_turns]

    temperatures = (
        jnp.ones(1, dtype)
        if refinement.anneal is None
        else refinement.anneal.inverse_temperatures.astype(dtype)
    )
    return _Step(
        turn=jnp.arange(num_turns),
        noise=None,
        probe_key=None,
        behind=jax.tree.map(lambda v: schedule(v, 1), changing),
        ahead=jax.tree.map(lambda v: schedule(v, 0), changing),
        temperature_behind=schedule(temperatures, 1),
        temperature_ahead=schedule(temperatures, 0),
    )


def _after_evaluation(result: RESULTS, is_finite: Bool[Array, ""], turn: Array) -> RESULTS:
    failure = RESULTS.where(turn == 0, RESULTS.non_finite_start, RESULTS.non_finite_gradient)
    fails = (result == RESULTS.successful) & ~is_finite
    return RESULTS.where(fails, failure, result)


def _end(end: _Carry) -> Walk:
    is_finite = jnp.all(jnp.isfinite(end.position))
    fails = (end.result == RESULTS.successful) & ~is_finite
    return Walk(
        position=jnp.where(is_finite, end.position, end.last_good),
        log_q=end.log_q,
        logdensity=end.logdensity,
        result=RESULTS.where(fails, RESULTS.non_finite_position, end.result),
        one_to_one=end.one_to_one,
    )


def _where(condition: Bool[Array, ""], then: PyTree, otherwise: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), then, otherwise)
