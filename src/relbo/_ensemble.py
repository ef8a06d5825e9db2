"""Many chains in one small compiled program.

Most posteriors take longer to compile than to sample. So the model is traced into one loop with
one evaluation in it, and nothing is compiled that the host can do as well: it draws the noise,
and fits normals (`relbo._normal`) with the same program as evaluator.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from relbo._mesh import Spread, rows
from relbo._target import Data, Target

CHUNK = 32
"""Iterations between two looks of the host."""


class Points(NamedTuple):
    """C points in white coordinates, and what the model says there."""

    white: Float[Array, "c d"]
    logdensity: Float[Array, " c"]
    score: Float[Array, "c d"]


class State(NamedTuple):
    proposal: Float[Array, "c d"]
    """Where the model is evaluated next."""
    momentum: Float[Array, "c d"]
    current: Points
    """Where the chains are: the start of the trajectory under way."""
    energy: Float[Array, " c"]
    """At the start of the trajectory."""
    is_new: Bool[Array, ""]
    """Whether the proposal is a start, to be taken as it is."""
    log_step: Scalar
    left: Int[Array, ""]
    """Leapfrogs to the end of the trajectory."""
    iteration: Int[Array, ""]
    """Iterations since the adaptation was last begun."""


class Noise(NamedTuple):
    """All that is random in a chunk."""

    momentum: Float[Array, "m c d"]
    """One more than iterations: the last trajectory begun ends in the next chunk."""
    uniform: Float[Array, "n c"]
    length: Float[Array, " m"]
    """Of the trajectories, in white coordinates."""


class Record(NamedTuple):
    """What one chunk leaves behind; of the first axis only the iterations run are filled."""

    white: Float[Array, "n c d"]
    logdensity: Float[Array, "n c"]
    acceptance: Float[Array, "n c"]


class Settings(NamedTuple):
    """Numbers that a compiled program takes as arguments."""

    num_iterations: Int[Array, ""]
    adapt: Bool[Array, ""]
    """Whether to tune the step size."""
    target_acceptance: Scalar
    max_leapfrogs: Int[Array, ""]


class _Loop(NamedTuple):
    state: State
    record: Record
    done: Int[Array, ""]
    """Iterations; the turn that only evaluates the proposal comes before the first."""


@functools.partial(jax.jit, static_argnames=("target", "spread"))
def advance(
    target: Target,
    loc: Float[Array, " d"],
    factor: Float[Array, "d d"] | Float[Array, " d"],
    state: State,
    data: Data,
    noise: Noise,
    settings: Settings,
    spread: Spread | None = None,
) -> tuple[State, Record]:
    """Runs Hamiltonian Monte Carlo in white coordinates, z = loc + factor u.

    With no iterations it evaluates the proposal and leaves what it found in `current`. The
    chains may be spread over devices; the host is given all of them.
    """
    evaluate = jax.vmap(jax.value_and_grad(target.logdensity), in_axes=(0, None))
    is_dense = factor.ndim == 2

    def turn(loop: _Loop) -> _Loop:
        white = rows(spread, loop.state.proposal)
        moved = white @ factor.T if is_dense else white * factor[None]
        values, scores = evaluate(loc[None] + moved, data)
        scores = scores @ factor if is_dense else scores * factor[None]
        values = jnp.where(jnp.isnan(values), -jnp.inf, values)
        return _leapfrog(loop, Points(white, values, scores), noise, settings)

    def is_unfinished(loop: _Loop) -> Bool[Array, ""]:
        return loop.state.is_new | (loop.done < settings.num_iterations)

    num_chains, size = state.proposal.shape
    values = jnp.zeros((CHUNK, num_chains), state.proposal.dtype)
    record = Record(jnp.zeros((CHUNK, num_chains, size), values.dtype), values, values)
    loop = _Loop(state, record, jnp.zeros((), jnp.int32))
    loop = jax.lax.while_loop(is_unfinished, turn, loop)
    if spread is not None:
        loop = spread.whole(loop)
    return loop.state, loop.record


def _leapfrog(loop: _Loop, here: Points, noise: Noise, settings: Settings) -> _Loop:
    """The end of a leapfrog, Metropolis's choice if it was the last, the next one's start."""
    state = loop.state
    step = jnp.exp(state.log_step)
    arrived = state._replace(
        momentum=state.momentum + 0.5 * step * here.score, left=state.left - 1
    )
    loop, here = jax.lax.cond(
        arrived.left <= 0,
        _end_trajectory,
        lambda loop, here, *_: (loop, here),
        loop._replace(state=arrived), here, noise, settings,
    )  # fmt: skip
    step = jnp.exp(loop.state.log_step)
    momentum = loop.state.momentum + 0.5 * step * here.score
    return loop._replace(
        state=loop.state._replace(momentum=momentum, proposal=here.white + step * momentum)
    )


def _energy(points: Points, momentum: Float[Array, "c d"]) -> Float[Array, " c"]:
    return 0.5 * jnp.sum(momentum**2, 1) - points.logdensity


def _end_trajectory(
    loop: _Loop, here: Points, noise: Noise, settings: Settings
) -> tuple[_Loop, Points]:
    state, record, done = loop
    is_new = state.is_new
    gain = state.energy - _energy(here, state.momentum)
    fine = jnp.isfinite(here.logdensity) & jnp.all(jnp.isfinite(here.score), 1)
    gain = jnp.where(fine & ~jnp.isnan(gain), gain, -jnp.inf)
    acceptance = jnp.exp(jnp.minimum(gain, 0.0))
    accepted = (noise.uniform[done] < acceptance) | is_new
    current = Points(
        jnp.where(accepted[:, None], here.white, state.current.white),
        jnp.where(accepted, here.logdensity, state.current.logdensity),
        jnp.where(accepted[:, None], here.score, state.current.score),
    )
    pull = (jnp.mean(acceptance) - settings.target_acceptance) / jnp.sqrt(1.0 + state.iteration)
    log_step = state.log_step + jnp.where(settings.adapt & ~is_new, pull, 0.0)
    at = jnp.where(is_new, CHUNK, done)  # beyond the buffer nothing is written
    record = Record(
        record.white.at[at].set(current.white, mode="drop"),
        record.logdensity.at[at].set(current.logdensity, mode="drop"),
        record.acceptance.at[at].set(acceptance, mode="drop"),
    )
    done = done + jnp.where(is_new, 0, 1)
    momentum = noise.momentum[done]
    left = jnp.ceil(noise.length[done] / jnp.exp(log_step))
    state = state._replace(
        current=current,
        momentum=momentum,
        energy=_energy(current, momentum),
        is_new=jnp.zeros((), bool),
        log_step=log_step,
        left=jnp.clip(left, 1, settings.max_leapfrogs).astype(jnp.int32),
        iteration=state.iteration + jnp.where(is_new, 0, 1),
    )
    return _Loop(state, record, done), current
