"""Sequential Monte Carlo from the draws of one posterior to another one."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from relbo.evaluate.annealed_path import AnnealedPath, MoveNoise, draw_noise, move
from relbo.evaluate.importance import log_mean_weight
from relbo.gaussian import WhiteningMap, WhiteningNormal, white_logdensity, whitening_map
from relbo.problem import Problem
from relbo.sampling.ensemble import QUARTER_PERIOD
from relbo.sampling.moving import OldDraws, effective_share, resampled

STAGE_SHARE = 0.5
"""The share of effective particles after a change of the temperature."""
MAX_STAGES = 12
"""Changes of the temperature after which the weights count as collapsed."""
TARGET_ACCEPTANCE = 0.75
MAX_LEAPFROGS = 16


class Particles(NamedTuple):
    """Particles at the end of the path, in white coordinates of the new posterior."""

    white: Float[np.ndarray, "n d"]
    fraction: float
    """How far on the path they came: 1 if they arrived."""
    log_ratio: float
    """The logarithm of the ratio of the evidences."""
    stderr: float
    num_stages: int


class PathEnds(NamedTuple):
    """The two posteriors in white coordinates."""

    old: Problem
    old_map: WhiteningMap
    new: Problem
    new_map: WhiteningMap

    def path(self, dtype: np.dtype) -> AnnealedPath:
        return AnnealedPath(
            lambda _: jnp.zeros(self.new.size, dtype),  # the particles exist already
            functools.partial(white_logdensity, self.old, self.old_map),
            functools.partial(white_logdensity, self.new, self.new_map),
            self.new.size,
            dtype,
        )


def tempered(
    rng: np.random.Generator,
    problems: tuple[Problem, Problem],
    particles: OldDraws,
    normal: WhiteningNormal,
    gain: Float[np.ndarray, " n"],
    step_size: float,
) -> Particles:
    """Moves particles from the old posterior to the new one, through densities between them.

    At every stage the density changes as far as half of the particles stay effective; they are
    resampled and take a Metropolis-corrected Hamiltonian step.

    Args:
        rng: the source of all noise.
        problems: the old and the new posterior.
        particles: draws of the old posterior.
        normal: maps their white coordinates to where the new posterior is.
        gain: the log importance weights of the particles for the new posterior.
        step_size: the step size in white coordinates to start with.
    """
    dtype = np.dtype(jnp.result_type(float))
    maps = (whitening_map(one, dtype) for one in (particles.normal, normal))
    (old, new), (old_map, new_map) = problems, maps
    ends = PathEnds(old, old_map, new, new_map)
    white = particles.white.astype(dtype)
    log_det = normal.log_det - particles.normal.log_det
    fraction, log_ratio, variance, stage = 0.0, 0.0, 0.0, 0
    num_leapfrogs = int(np.clip(np.ceil(QUARTER_PERIOD / step_size), 1, MAX_LEAPFROGS))
    while fraction < 1.0 and stage < MAX_STAGES:
        after = _next_fraction(gain, fraction)
        log_weights = np.where(np.isfinite(gain), (after - fraction) * gain, -np.inf)
        value, stderr = log_mean_weight(log_weights)
        log_ratio, variance = log_ratio + value, variance + stderr**2
        fraction, stage = after, stage + 1
        key = jr.key(int(rng.integers(2**31)))
        chosen = jnp.asarray(white[resampled(rng, log_weights)])
        made = _step(key, ends, chosen, fraction, step_size, num_leapfrogs)
        white, gain, acceptance = map(np.asarray, made)
        gain = gain.astype(float) + log_det
        step_size *= float(np.exp(np.mean(acceptance) - TARGET_ACCEPTANCE))
    return Particles(white.astype(float), fraction, log_ratio, variance**0.5, stage)


def _next_fraction(gain: Float[np.ndarray, " n"], fraction: float) -> float:
    """Returns how far the density may change."""
    gain = np.where(np.isfinite(gain), gain, -1e300)
    if effective_share((1.0 - fraction) * gain) >= STAGE_SHARE:
        return 1.0
    low, high = 0.0, 1.0 - fraction
    for _ in range(40):
        middle = 0.5 * (low + high)
        is_good = effective_share(middle * gain) >= STAGE_SHARE
        low, high = (middle, high) if is_good else (low, middle)
    return fraction + low


@functools.partial(jax.jit, static_argnames=("num_leapfrogs",))
def _step(
    key: PRNGKeyArray,
    ends: PathEnds,
    white: Float[Array, "n d"],
    fraction: Scalar | float,
    step_size: Scalar | float,
    num_leapfrogs: int,
) -> tuple[Array, Array, Array]:
    """Moves the particles, and returns their log weights there and acceptance rates."""
    path = ends.path(np.dtype(white.dtype))
    fraction = jnp.asarray(fraction, white.dtype)
    steps = jnp.full(white.shape[1], step_size, white.dtype)

    def one(position: Float[Array, " d"], noise: MoveNoise) -> tuple[Array, ...]:
        point, probability = move(
            path, path.at(position), noise, fraction, steps, num_leapfrogs
        )
        return point.position, point.gain, probability

    return jax.vmap(one)(white, draw_noise(key, white))  # type: ignore[return-value]
