"""Looks for mass that a fitted normal does not explain: around it, inside it, and beyond it."""

import numpy as np
from jaxtyping import Float

from relbo.gaussian.evaluation import Evaluate
from relbo.gaussian.starts import Climbs, basins_of, climb, plain_normal
from relbo.gaussian.whitening import WhiteningNormal

DISTANCES = np.array(
    [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0]
)
"""Distances from the centre at which each ray is evaluated, in standard deviations."""
MAX_RAYS = 100
"""The largest number of rays."""
MIN_RISE = 1.0
"""A ray on which the log density rises again by this leads to another mode."""
FRACTIONS = np.array([1e-3, 1e-2, 0.1, 0.3, 1.0])
"""Fractions of a scale at which a smaller scale is looked for."""
MAX_SPIKE = 0.25
"""A summit is a spike if it is narrower than the normal by this factor on average."""
MAX_DISTANCE = 5.0
"""The largest distance of a spike from the centre, in standard deviations."""
WIDENINGS = 2.0 ** np.arange(2, 11)
"""Factors by which the normal is widened to find wider parts."""
MIN_LOG_SHARE = -4.0
"""Parts with a smaller logarithm of their share of the mass are not followed."""


def unexplained_parts(
    rng: np.random.Generator,
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    log_mass: float,
    summit: Float[np.ndarray, " d"],
    known: list[Float[np.ndarray, " d"]],
) -> list[WhiteningNormal]:
    """Returns normals to start further fits from, where there are signs of other modes.

    Args:
        rng: the source of noise.
        evaluate: the model.
        num_points: how many points `evaluate` takes at once.
        normal: the fitted normal.
        log_mass: its log evidence, without the factor of 2 pi.
        summit: the highest point that is known.
        known: points from which fits have started.
    """
    found = [
        *_spike(evaluate, num_points, normal, log_mass, summit),
        *_wide_part(rng, evaluate, num_points, normal, log_mass),
    ]
    for point in _beyond(rng, evaluate, num_points, normal, [summit, *known]):
        found.append(local_normal(evaluate, num_points, point))
    return found


def local_normal(
    evaluate: Evaluate, num_points: int, point: Float[np.ndarray, " d"]
) -> WhiteningNormal:
    """Returns a narrow normal at a summit, narrower still where the density asks for it."""
    plain = plain_normal(len(point), is_dense=True)
    scales, _ = _scales_at(evaluate, num_points, plain, point, 0.1)
    return plain.moved(point, np.diag(scales))


def _scales_at(
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    white: Float[np.ndarray, " d"],
    largest: float,
) -> tuple[Float[np.ndarray, " d"], float]:
    """Returns the scale along each axis at a summit, at most the largest, and the height."""
    size = len(white)
    steps = largest * FRACTIONS
    points = white + (steps[:, None, None] * np.eye(size)).reshape(-1, size)
    height, *values = _logdensity(evaluate, num_points, normal, np.vstack([white, points]))
    drops = np.nan_to_num(height - np.reshape(values, (len(steps), size)), nan=0.0)
    # The first step at which the density is clearly lower, or the last one.
    first = np.where(np.any(drops > 0.25, 0), np.argmax(drops > 0.25, 0), len(steps) - 1)
    drop = np.take_along_axis(drops, first[None], 0)[0]
    scales = steps[first] / np.sqrt(2 * np.clip(drop, 0.5, 1e6))
    return np.where(drop > 0.25, scales, largest), float(height)


def _spike(
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    log_mass: float,
    summit: Float[np.ndarray, " d"],
) -> list[WhiteningNormal]:
    """Finds a narrow part at the summit with mass of its own, by Laplace's approximation."""
    white = normal.pull(summit[None])[0]
    # A summit outside of the normal is a mode of its own, or the end of a neck.
    if not np.max(np.abs(white)) < MAX_DISTANCE:
        return []
    scales, height = _scales_at(evaluate, num_points, normal, white, 1.0)
    log_scales = np.log(scales)
    is_narrow = np.mean(log_scales) < np.log(MAX_SPIKE)
    if is_narrow and height + normal.log_det + np.sum(log_scales) > log_mass + MIN_LOG_SHARE:
        return [normal.moved(white, np.diag(scales))]
    return []


def _wide_part(
    rng: np.random.Generator,
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    log_mass: float,
) -> list[WhiteningNormal]:
    """Finds a wide part around the normal, by importance sampling from widened normals."""
    size = len(normal.loc)
    noise = rng.standard_normal((len(WIDENINGS), num_points, size))
    white = (WIDENINGS[:, None, None] * noise).reshape(-1, size)
    values = _logdensity(evaluate, num_points, normal, white).reshape(noise.shape[:2])
    values = values + 0.5 * np.sum(noise**2, 2) + size * np.log(WIDENINGS)[:, None]
    is_far = np.sum(white**2, 1).reshape(values.shape) > 4.0 * size + 20.0
    weights = np.exp(np.where(is_far, values + normal.log_det - log_mass, -np.inf))
    shares = weights.mean(1)
    # Several points have to show it.
    is_clear = (shares > np.exp(MIN_LOG_SHARE)) & (weights.max(1) < 0.4 * weights.sum(1))
    if not np.any(is_clear):
        return []
    best = int(np.argmax(np.where(is_clear, shares, 0.0)))
    return [normal.moved(np.zeros(size), WIDENINGS[best] * np.eye(size))]


def _beyond(
    rng: np.random.Generator,
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    known: list[Float[np.ndarray, " d"]],
) -> list[Float[np.ndarray, " d"]]:
    """Finds summits behind a valley, on rays from the centre.

    On each ray one coordinate moves, and the others follow as they are correlated.
    """
    size = len(normal.loc)
    rays = normal.pulled_score(np.eye(size))
    rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    rays = rng.permutation(np.concatenate([rays, -rays]))[:MAX_RAYS]
    white = (rays[:, None] * DISTANCES[:, None]).reshape(-1, size)
    values = _logdensity(evaluate, num_points, normal, white).reshape(len(rays), -1)
    rises = values - np.minimum.accumulate(np.where(np.isfinite(values), values, np.inf), 1)
    rises = np.where(np.isfinite(rises), rises, 0.0)
    if np.max(rises) < MIN_RISE:
        return []
    best = np.argmax(rises, 1)
    highest = np.argsort(-np.max(rises, 1))[:num_points]
    highest = highest[np.max(rises, 1)[highest] >= MIN_RISE]
    points = normal.push(rays[highest] * DISTANCES[best[highest], None])
    plain = plain_normal(size, is_dense=True)
    ends = climb(evaluate, plain, np.resize(points, (num_points, size)))
    number = len(known)
    heights = _logdensity(evaluate, num_points, plain, np.stack(known))
    every = Climbs(
        np.concatenate([known, ends.summits]),
        np.concatenate([heights, ends.heights]),
        np.concatenate([np.ones(number, bool), ends.has_arrived]),
    ).sorted()
    leaders = every.summits[basins_of(evaluate, plain, num_points, every).leaders]
    is_new = lambda point: not any(np.array_equal(point, other) for other in known)
    return [point for point in leaders[:4] if is_new(point)]


def _logdensity(
    evaluate: Evaluate,
    num_points: int,
    normal: WhiteningNormal,
    white: Float[np.ndarray, "n d"],
) -> Float[np.ndarray, " n"]:
    """Evaluates any number of points; minus infinity where the density is not finite."""
    batch = np.resize(white, (num_points * -(-len(white) // num_points), white.shape[1]))
    here = evaluate(normal, batch)
    return np.where(here.is_finite, here.logdensity, -np.inf)[: len(white)]
