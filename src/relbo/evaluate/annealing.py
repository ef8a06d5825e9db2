"""Annealed importance sampling: pilot runs fit a schedule, a weighted run uses it."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from relbo._devices import Spread, rows
from relbo.core.checks import check_fraction, check_integer
from relbo.evaluate.annealed_path import AnnealedPath, AnnealedPoint, draw_noise, move

MIN_CHAINS = 4
NUM_PILOTS = 2
PILOT_SHARE = 4
"""Temperatures of the weighted run per temperature of a pilot run."""
MIN_PILOT_STEPS = 32
CROWDING = 10.0
"""The first pilot's temperatures grow as exp(CROWDING s): most of them are near the base."""
ADAPTATION_RATE = 0.3
EVEN_SHARE = 0.1
"""The share of the temperatures that is spread evenly, whatever the pilots found."""
PRIOR_CHAINS = 10.0
"""The number of chains that the previous temperature's scale counts for."""


@dataclass(frozen=True)
class AnnealingSettings:
    """How chains are annealed from a base to a target.

    Args:
        num_temperatures: number of steps from the base to the target.
        num_chains: number of independent chains.
        num_leapfrogs: number of gradients at each temperature.
        target_acceptance: the acceptance rate that the step sizes are fitted to.
    """

    num_temperatures: int = 1_000
    num_chains: int = 64
    num_leapfrogs: int = 5
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        check_integer("num_temperatures", self.num_temperatures, 1)
        check_integer("num_chains", self.num_chains, MIN_CHAINS)
        check_integer("num_leapfrogs", self.num_leapfrogs, 1)
        check_fraction("target_acceptance", self.target_acceptance)

    @property
    def num_pilot_steps(self) -> int:
        steps = max(self.num_temperatures // PILOT_SHARE, MIN_PILOT_STEPS)
        return min(steps, self.num_temperatures)


class AnnealingSchedule(NamedTuple):
    """Temperatures, step sizes and scales, which are fixed in a weighted run."""

    inverse_temperatures: Float[Array, " temperatures+1"]
    """From 0 to 1; entries beyond the number in use are 1."""
    step_sizes: Float[Array, " temperatures"]
    """One for each temperature but the base's own."""
    scales: Float[Array, "temperatures d"]
    """The width of each coordinate, the unit of its step size."""


class AnnealingPhase(NamedTuple):
    """One run along the path."""

    key: PRNGKeyArray
    num_steps: Int[Array, ""]
    next_num_steps: Int[Array, ""]
    is_pilot: Bool[Array, ""]
    is_forward: Bool[Array, ""]


class AnnealedWalk(NamedTuple):
    """The state of a run: where the chains are, and what they found so far."""

    points: AnnealedPoint
    log_weights: Float[Array, " chains"]
    log_step_change: Scalar
    """The log ratio of this run's step sizes to the schedule's."""
    scale: Float[Array, " d"]
    schedule: AnnealingSchedule
    """The step sizes and scales at each temperature, as this run found them."""
    speeds: Float[Array, " temperatures+1"]
    """The spread of log target - log base: how fast the density changes."""


class Annealed(NamedTuple):
    """The log weights of the chains."""

    forward: Float[Array, " chains"]
    reverse: Float[Array, " chains"] | None
    """Log weights of 1 / Z, if there was an exact draw to start the reverse run from."""


def anneal(
    key: PRNGKeyArray,
    path: AnnealedPath,
    settings: AnnealingSettings,
    exact: Float[Array, " d"] | None = None,
    *,
    spread: Spread | None = None,
) -> Annealed:
    """Runs the pilots, the weighted run and, from an exact draw of the target, a reverse run.

    The pilots choose temperatures, step sizes and scales. The weighted runs start anew with all
    of these fixed, so that their kernels do not depend on their chains. All runs are iterations
    of one loop, so that the densities are compiled once. The chains may be spread over devices.
    """
    num_phases = NUM_PILOTS + (1 if exact is None else 2)
    turn = jnp.arange(num_phases)
    pilot, full = settings.num_pilot_steps, settings.num_temperatures
    phases = AnnealingPhase(
        jr.split(key, num_phases),
        jnp.where(turn < NUM_PILOTS, pilot, full),
        jnp.where(turn < NUM_PILOTS - 1, pilot, full),
        turn < NUM_PILOTS,
        turn <= NUM_PILOTS,
    )

    def run(
        schedule: AnnealingSchedule, phase: AnnealingPhase
    ) -> tuple[AnnealingSchedule, Float[Array, " chains"]]:
        walk = _walk(path, settings, schedule, phase, exact, spread)
        refitted = _refit(walk, phase)
        schedule = jax.tree.map(
            lambda new, old: jnp.where(phase.is_pilot, new, old), refitted, schedule
        )
        return schedule, walk.log_weights

    _, log_weights = jax.lax.scan(run, _first_schedule(path, settings), phases)
    if spread is not None:
        log_weights = spread.whole(log_weights)
    reverse = None if exact is None else log_weights[NUM_PILOTS + 1]
    return Annealed(log_weights[NUM_PILOTS], reverse)


def _first_schedule(path: AnnealedPath, settings: AnnealingSettings) -> AnnealingSchedule:
    number = settings.num_temperatures
    share = jnp.minimum(jnp.arange(number + 1) / settings.num_pilot_steps, 1.0)
    crowded = jnp.expm1(CROWDING * share) / jnp.expm1(CROWDING)
    # The step at which Hamiltonian moves on a standard normal are accepted well.
    step_size = path.dimension**-0.25
    dtype = path.dtype
    return AnnealingSchedule(
        crowded.astype(dtype),
        jnp.full(number, step_size, dtype),
        jnp.ones((number, path.dimension), dtype),
    )


def _walk(
    path: AnnealedPath,
    settings: AnnealingSettings,
    schedule: AnnealingSchedule,
    phase: AnnealingPhase,
    exact: Float[Array, " d"] | None,
    spread: Spread | None = None,
) -> AnnealedWalk:
    start_key, key = jr.split(phase.key)
    start = jax.vmap(path.draw)(jr.split(start_key, settings.num_chains))
    if exact is not None:
        start = jnp.where(phase.is_forward, start, exact[None])
    points = jax.vmap(path.at)(rows(spread, start))
    scale, speed = _scale_and_speed(points)
    first = AnnealedWalk(
        points,
        jnp.zeros(settings.num_chains, start.dtype),
        jnp.zeros((), start.dtype),
        jnp.where(_is_known(scale), scale, 1.0),
        schedule,
        jnp.zeros_like(schedule.inverse_temperatures).at[0].set(speed),
    )

    def step(i: Int[Array, ""], walk: AnnealedWalk) -> AnnealedWalk:
        t = jnp.where(phase.is_forward, i, phase.num_steps - 1 - i)
        walk = walk._replace(points=rows(spread, walk.points))
        return _step(jr.fold_in(key, i), t, path, settings, schedule, phase, walk)

    return jax.lax.fori_loop(0, phase.num_steps, step, first)


def _step(
    key: PRNGKeyArray,
    t: Int[Array, ""],
    path: AnnealedPath,
    settings: AnnealingSettings,
    schedule: AnnealingSchedule,
    phase: AnnealingPhase,
    walk: AnnealedWalk,
) -> AnnealedWalk:
    """Visits one temperature: forward it weighs and moves, backward it moves and weighs."""
    behind = schedule.inverse_temperatures[t]
    ahead = schedule.inverse_temperatures[t + 1]
    step_size = schedule.step_sizes[t] * jnp.exp(walk.log_step_change)
    # A pilot adapts to its own chains; a weighted run must not.
    scale = jnp.where(phase.is_pilot, walk.scale, schedule.scales[t])
    points, accepted = jax.vmap(
        lambda point, noise: move(
            path, point, noise, ahead, step_size * scale, settings.num_leapfrogs
        )
    )(walk.points, draw_noise(key, walk.points.position))
    gain = jnp.where(phase.is_forward, walk.points.gain, -points.gain)
    change = ADAPTATION_RATE * (jnp.mean(accepted) - settings.target_acceptance)
    seen, speed = _scale_and_speed(points)
    scale = _smoothed(walk.scale, seen, settings.num_chains)
    return AnnealedWalk(
        points,
        # NaN where a density is NaN; the weight of that chain then counts as zero.
        walk.log_weights + (ahead - behind) * gain,
        walk.log_step_change + jnp.where(phase.is_pilot, change, 0.0),
        scale,
        walk.schedule._replace(
            step_sizes=walk.schedule.step_sizes.at[t].set(step_size),
            scales=walk.schedule.scales.at[t].set(scale),
        ),
        walk.speeds.at[t + 1].set(speed),
    )


def _scale_and_speed(points: AnnealedPoint) -> tuple[Float[Array, " d"], Scalar]:
    """Computes the spread over chains of each coordinate, and of log target - log base."""
    spreads = _spread(jnp.concatenate([points.position, points.gain[:, None]], axis=1))
    return spreads[:-1], spreads[-1]


def _smoothed(before: Float[Array, " d"], seen: Float[Array, " d"], num_chains: int) -> Array:
    share = num_chains / (num_chains + PRIOR_CHAINS)
    seen = jnp.where(_is_known(seen), seen, before)
    return jnp.exp((1 - share) * jnp.log(before) + share * jnp.log(seen))


def _is_known(scale: Float[Array, " d"]) -> Bool[Array, " d"]:
    return (scale > 0) & jnp.isfinite(scale)


def _spread(values: Float[Array, "chains ..."]) -> Float[Array, "..."]:
    """Estimates a standard deviation from quantiles, robust to a few lost chains."""
    number = values.shape[0]
    ordered = jnp.sort(values, axis=0)
    low = round(0.1 * (number - 1))
    # The expected range between these order statistics of a standard normal.
    width = -2.0 * NormalDist().inv_cdf((low + 0.625) / (number + 0.25))
    return (ordered[number - 1 - low] - ordered[low]) / width


def _refit(walk: AnnealedWalk, phase: AnnealingPhase) -> AnnealingSchedule:
    """Fits the schedule of the next run to what a pilot found."""
    old = walk.schedule
    betas, number = old.inverse_temperatures, old.step_sizes.shape[0]
    lengths = _lengths(betas, walk.speeds)
    share = jnp.minimum(jnp.arange(number + 1) / phase.next_num_steps, 1.0)
    new = _interpolate(share.astype(betas.dtype), lengths, betas[:, None])[:, 0]
    # Entries beyond the pilot's steps repeat its last temperature.
    last = jnp.minimum(jnp.arange(number), phase.num_steps - 1)
    seen = jnp.concatenate([old.step_sizes[:, None], old.scales], axis=1)[last]
    kept = jnp.exp(_interpolate(new[1:], betas[1:], jnp.log(seen)))
    ends = jnp.where(share < 1.0, new, 1.0).at[0].set(0.0)
    return AnnealingSchedule(ends, kept[:, 0], kept[:, 1:])


def _interpolate(
    at: Float[Array, " m"], known_at: Float[Array, " n"], known: Float[Array, "n k"]
) -> Float[Array, "m k"]:
    """Interpolates linearly between known rows, constant outside them."""
    if known.shape[0] == 1:
        return jnp.broadcast_to(known, (at.shape[0], known.shape[1]))
    after = jnp.clip(jnp.searchsorted(known_at, at), 1, known_at.shape[0] - 1)
    width = known_at[after] - known_at[after - 1]
    share = (at - known_at[after - 1]) / jnp.where(width > 0, width, 1.0)
    share = jnp.clip(share, 0.0, 1.0)[:, None]
    return (1 - share) * known[after - 1] + share * known[after]


def _lengths(betas: Float[Array, " n"], speeds: Float[Array, " n"]) -> Float[Array, " n"]:
    r"""Computes the share of the path's length before each temperature.

    The length of a step is $\Delta\beta$ times the spread of log target - log base. Steps of
    equal length minimise the variance of the log weight.
    """
    largest = jnp.finfo(betas.dtype).max ** 0.5
    speeds = jnp.nan_to_num(speeds, nan=0.0, posinf=largest)
    pieces = jnp.diff(betas) * 0.5 * (speeds[1:] + speeds[:-1])
    lengths = jnp.concatenate([jnp.zeros(1, betas.dtype), jnp.cumsum(pieces)])
    tiny = jnp.finfo(betas.dtype).tiny
    return (1 - EVEN_SHARE) * lengths / jnp.maximum(lengths[-1], tiny) + EVEN_SHARE * betas
