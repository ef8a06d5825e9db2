"""Sequential Monte Carlo from the draws of one posterior to another one."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from relbo._progress import Report
from relbo.evaluate.annealed_path import JITTER, AnnealedPath, AnnealedPoint, MoveNoise, move
from relbo.evaluate.importance import log_mean_weight
from relbo.gaussian import WhiteningMap, WhiteningNormal, white_logdensity, whitening_map
from relbo.problem import Problem
from relbo.sampling.moving import OldDraws, effective_share, resampled

STAGE_SHARE = 0.5
"""The share of effective particles after a change of the temperature."""
MAX_STAGES = 12
"""Changes of the temperature after which the weights count as collapsed."""
TARGET_ACCEPTANCE = 0.75
QUARTER_PERIOD = 1.6
"""A trajectory of this length forgets where a coordinate with standard deviation 1 was."""
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
    step_size: float,
    report: Report,
) -> Particles:
    """Moves particles from the old posterior to the new one, through densities between them.

    At every stage the density changes as far as half of the particles stay effective; they are
    resampled and take a Metropolis-corrected Hamiltonian step.

    Args:
        rng: the source of all noise.
        problems: the old and the new posterior.
        particles: draws of the old posterior.
        normal: maps their white coordinates to where the new posterior is.
        step_size: the step size in white coordinates to start with.
        report: called with the progress.
    """
    dtype = np.dtype(jnp.result_type(float))
    maps = (whitening_map(one, dtype) for one in (particles.normal, normal))
    (old, new), (old_map, new_map) = problems, maps
    ends = PathEnds(old, old_map, new, new_map)
    points = _start(ends, particles.white.astype(dtype))
    log_det = normal.log_det - particles.normal.log_det
    fraction, log_ratio, variance, stage = 0.0, 0.0, 0.0, 0
    num_leapfrogs = int(np.clip(np.ceil(QUARTER_PERIOD / step_size), 1, MAX_LEAPFROGS))
    while fraction < 1.0 and stage < MAX_STAGES:
        here: Any = jax.tree.map(np.asarray, points)
        gain = (here.target - here.base).astype(float) + log_det
        after = _next_fraction(gain, fraction)
        log_weights = np.where(np.isfinite(gain), (after - fraction) * gain, -np.inf)
        value, stderr = log_mean_weight(log_weights)
        log_ratio, variance = log_ratio + value, variance + stderr**2
        fraction, stage = after, stage + 1
        rows = resampled(rng, log_weights)
        chosen = AnnealedPoint(*(part[rows] for part in here))
        settings: Any = (dtype.type(fraction), dtype.type(step_size), num_leapfrogs)
        points, acceptance = _step(ends, chosen, _noise(rng, chosen.position), *settings)
        report("update", 0.3 + 0.3 * fraction)
        step_size *= float(np.exp(np.mean(np.asarray(acceptance)) - TARGET_ACCEPTANCE))
    white = np.asarray(points.position, float)
    return Particles(white, fraction, log_ratio, variance**0.5, stage)


def _start(ends: PathEnds, white: Float[np.ndarray, "n d"]) -> AnnealedPoint:
    """Evaluates both posteriors, by a step of length zero, so that one program serves both."""
    points: Any = white
    zeros: Any = np.zeros_like(white)
    nothing, zero = zeros[:, 0], zeros[0, 0]
    unknown = AnnealedPoint(points, nothing, zeros, nothing, zeros)
    # Its acceptance means nothing, and has to be above the threshold.
    return _step(ends, unknown, MoveNoise(zeros, nothing, nothing - 1), zero, zero, 1)[0]


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


def _noise(rng: np.random.Generator, white: Any) -> MoveNoise:
    """Draws the noise of a move with NumPy, because random calls take long to compile."""
    number = len(white)
    momentum = rng.standard_normal(white.shape)
    jitter = rng.uniform(1 - JITTER, 1 + JITTER, number)
    parts: Any = (momentum, jitter, rng.uniform(size=number))
    return MoveNoise(*(part.astype(white.dtype) for part in parts))


@jax.jit
def _step(
    ends: PathEnds,
    points: AnnealedPoint,
    noise: MoveNoise,
    fraction: Scalar,
    step_size: Scalar,
    num_leapfrogs: Int[Array, ""] | int,
) -> tuple[AnnealedPoint, Float[Array, " n"]]:
    """Moves the particles, and returns them with their acceptance rates."""
    path = ends.path(np.dtype(points.position.dtype))
    steps = jnp.full(points.position.shape[1], step_size)
    one = lambda point, noise: move(path, point, noise, fraction, steps, num_leapfrogs)
    return jax.vmap(one)(points, noise)
