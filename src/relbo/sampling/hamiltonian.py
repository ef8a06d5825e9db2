"""Hamiltonian Monte Carlo of many chains in one small compiled program.

Most posteriors take longer to compile than to sample. So the model is traced into one loop that
evaluates it once, and everything that the host can do as well is left to it: it draws the noise
and fits normals (`relbo.gaussian`), using the same program to evaluate the model.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Scalar

from relbo._devices import Spread, rows
from relbo.core.dynamics import (
    EVEN_KICK,
    acceptance_probability,
    end_leapfrog,
    kinetic_energy,
    start_leapfrog,
)
from relbo.gaussian import WhiteningMap, evaluate_white
from relbo.problem import Problem

MAX_CHUNK = 32
"""The largest number of iterations per call of the compiled program."""
MAX_CHUNK_VALUES = 2**11
"""The largest number of values of one chain that a call returns, if it has four iterations."""

MAX_STEP = 0.8
"""The largest step, in white coordinates: two stages are unstable for a longer one."""

MAX_ACCEPTANCE = 0.97
"""The largest acceptance that steps are adapted to: beyond, halving rejections hardly pays."""

MAX_ENERGY_ERROR = 1000.0
"""A trajectory that loses more diverges, as NUTS calls it."""


def chunk_length(size: int) -> int:
    """Returns how many iterations a call has, so that its buffers stay small."""
    return int(np.clip(MAX_CHUNK_VALUES // size, 4, MAX_CHUNK))


class ChainMethod(NamedTuple):
    """The difference between Hamiltonian Monte Carlo and MALA.

    Hamiltonian trajectories have an even number of steps, with kicks that differ between even
    and odd positions: the two-stage integrator of `EVEN_KICK`.
    """

    target_acceptance: float
    max_leapfrogs: int
    num_stages: int
    even_kick: float

    def with_smaller_steps(self) -> "ChainMethod":
        """Returns the method with smaller steps, for posteriors with narrow places."""
        smaller = 1 - (1 - self.target_acceptance) / 2
        return self._replace(target_acceptance=min(smaller, MAX_ACCEPTANCE))


METHODS = {
    "hmc": ChainMethod(0.88, 64, 2, EVEN_KICK),
    "mala": ChainMethod(0.574, 1, 1, 1.0),
}


class ChainPoints(NamedTuple):
    """C points in white coordinates, with the log density and the score there."""

    white: Float[Array, "c d"]
    logdensity: Float[Array, " c"]
    score: Float[Array, "c d"]

    def energy(self, momentum: Float[Array, "c d"]) -> Float[Array, " c"]:
        return kinetic_energy(momentum) - self.logdensity

    @property
    def is_finite(self) -> Bool[Array, " c"]:
        return jnp.isfinite(self.logdensity) & jnp.all(jnp.isfinite(self.score), 1)


class ChainState(NamedTuple):
    """All chains in the middle of a trajectory."""

    proposal: Float[Array, "c d"]
    """Where the model is evaluated next."""
    momentum: Float[Array, "c d"]
    current: ChainPoints
    """Where the chains are: the start of the present trajectory."""
    energy: Float[Array, " c"]
    """The energy at the start of the trajectory."""
    is_new: Bool[Array, ""]
    """Whether the proposal is a starting point, which is accepted without a test."""
    log_step: Scalar
    """The logarithm of the adapted step size: the largest that a trajectory may have."""
    step_size: Scalar
    """The step size of the present trajectory, which has a given length."""
    leapfrogs_left: Int[Array, ""]
    num_leapfrogs: Int[Array, ""]
    """The leapfrogs of the present trajectory."""
    iteration: Int[Array, ""]
    """Iterations since the adaptation started."""

    def kick(self, even_kick: Scalar) -> Scalar:
        """The strength of the kick at the present position."""
        return jnp.where(self.leapfrogs_left % 2 == 0, even_kick, 2.0 - even_kick)


class ChainNoise(NamedTuple):
    """All random numbers of a chunk."""

    momentum: Float[Array, "m c d"]
    """One more than iterations: the last trajectory continues in the next chunk."""
    uniform: Float[Array, "n c"]
    length: Float[Array, " m"]
    """The lengths of the trajectories, in white coordinates."""
    step_factor: Float[Array, " m"]
    """The step size of each trajectory, in units of the adapted one."""


class ChainRecord(NamedTuple):
    """What a chunk visited; only the iterations that ran are filled along the first axis."""

    white: Float[Array, "n c d"]
    score: Float[Array, "n c d"]
    logdensity: Float[Array, "n c"]
    acceptance: Float[Array, "n c"]
    energy: Float[Array, "n c"]
    """The energy at the start of a trajectory."""
    diverging: Bool[Array, "n c"]
    num_leapfrogs: Int[Array, " n"]


class ChainSettings(NamedTuple):
    """Numbers that are arguments of the compiled program."""

    num_iterations: Int[Array, ""]
    adapt: Bool[Array, ""]
    """Whether to tune the step size."""
    target_acceptance: Scalar
    max_leapfrogs: Int[Array, ""]
    num_stages: Int[Array, ""]
    even_kick: Scalar


class _Loop(NamedTuple):
    state: ChainState
    record: ChainRecord
    done: Int[Array, ""]
    """Finished iterations; the turn that evaluates a starting point is not counted."""


@functools.partial(jax.jit, static_argnames=("spread",))
def advance(
    problem: Problem,
    whitening: WhiteningMap,
    state: ChainState,
    noise: ChainNoise,
    settings: ChainSettings,
    spread: Spread | None = None,
) -> tuple[ChainState, ChainRecord]:
    """Runs Hamiltonian Monte Carlo in white coordinates.

    With no iterations it evaluates the proposal and returns what it found in `current`. The
    chains may be spread over devices; the host receives all of them.
    """

    def turn(loop: _Loop) -> _Loop:
        white = rows(spread, loop.state.proposal)
        values, scores = evaluate_white(problem, whitening, white, in_groups=spread is None)
        return _leapfrog(loop, ChainPoints(white, values, scores), noise, settings)

    def is_unfinished(loop: _Loop) -> Bool[Array, ""]:
        return loop.state.is_new | (loop.done < settings.num_iterations)

    values = jnp.zeros_like(noise.uniform)
    places = jnp.zeros((*values.shape, state.proposal.shape[1]), values.dtype)
    record = ChainRecord(
        places,
        places,
        values,
        values,
        values,
        jnp.zeros(values.shape, bool),
        jnp.zeros(len(values), jnp.int32),
    )
    loop = _Loop(state, record, jnp.zeros((), jnp.int32))
    loop = jax.lax.while_loop(is_unfinished, turn, loop)
    if spread is not None:
        loop = spread.whole(loop)
    return loop.state, loop.record


def _leapfrog(
    loop: _Loop, here: ChainPoints, noise: ChainNoise, settings: ChainSettings
) -> _Loop:
    """Ends a leapfrog, accepts or rejects if it was the last one, and starts the next."""
    state = loop.state
    arrived = state._replace(leapfrogs_left=state.leapfrogs_left - 1)
    kick = arrived.kick(settings.even_kick)
    momentum = end_leapfrog(state.momentum, here.score, state.step_size, kick)
    arrived = arrived._replace(momentum=momentum)
    loop, here = jax.lax.cond(
        arrived.leapfrogs_left <= 0,
        _end_trajectory,
        lambda loop, here, *_: (loop, here),
        loop._replace(state=arrived), here, noise, settings,
    )  # fmt: skip
    state = loop.state
    proposal, momentum = start_leapfrog(
        here.white, state.momentum, here.score, state.step_size, state.kick(settings.even_kick)
    )
    return loop._replace(state=state._replace(momentum=momentum, proposal=proposal))


def _end_trajectory(
    loop: _Loop, here: ChainPoints, noise: ChainNoise, settings: ChainSettings
) -> tuple[_Loop, ChainPoints]:
    state, record, done = loop
    is_new = state.is_new
    energy = jnp.where(here.is_finite, here.energy(state.momentum), jnp.inf)
    acceptance = acceptance_probability(state.energy, energy)
    accepted = (noise.uniform[done] < acceptance) | is_new
    current = ChainPoints(
        jnp.where(accepted[:, None], here.white, state.current.white),
        jnp.where(accepted, here.logdensity, state.current.logdensity),
        jnp.where(accepted[:, None], here.score, state.current.score),
    )
    pull = (jnp.mean(acceptance) - settings.target_acceptance) / jnp.sqrt(1.0 + state.iteration)
    log_step = state.log_step + jnp.where(settings.adapt & ~is_new, pull, 0.0)
    log_step = jnp.minimum(log_step, jnp.log(MAX_STEP))
    index = jnp.where(is_new, len(noise.uniform), done)  # nothing is written beyond the buffer
    record = ChainRecord(
        record.white.at[index].set(current.white, mode="drop"),
        record.score.at[index].set(current.score, mode="drop"),
        record.logdensity.at[index].set(current.logdensity, mode="drop"),
        record.acceptance.at[index].set(acceptance, mode="drop"),
        record.energy.at[index].set(state.energy, mode="drop"),
        record.diverging.at[index].set(energy - state.energy > MAX_ENERGY_ERROR, mode="drop"),
        record.num_leapfrogs.at[index].set(state.num_leapfrogs, mode="drop"),
    )
    done = done + jnp.where(is_new, 0, 1)
    momentum = noise.momentum[done]
    length, stages = noise.length[done], settings.num_stages
    max_step = noise.step_factor[done] * jnp.exp(log_step)
    num_leapfrogs = stages * jnp.ceil(length / (stages * max_step))
    num_leapfrogs = jnp.clip(num_leapfrogs, stages, settings.max_leapfrogs).astype(jnp.int32)
    # MALA takes one step, whatever its length.
    step_size = jnp.where(stages == 1, max_step, jnp.minimum(length / num_leapfrogs, max_step))
    state = state._replace(
        current=current,
        momentum=momentum,
        energy=current.energy(momentum),
        is_new=jnp.zeros((), bool),
        log_step=log_step,
        step_size=step_size,
        leapfrogs_left=num_leapfrogs,
        num_leapfrogs=num_leapfrogs,
        iteration=state.iteration + jnp.where(is_new, 0, 1),
    )
    return _Loop(state, record, done), current
