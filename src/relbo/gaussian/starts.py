"""Starting points in different basins of a density, found by climbing from many points."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.gaussian.evaluation import Evaluate
from relbo.gaussian.whitening import WhiteningNormal

NUM_CLIMBING_STEPS = 50
NUM_BATCHES = {3: 6, 20: 2}
"""How many batches of points climb, by the largest dimension; one beyond."""
MAX_CANDIDATES = 12
"""The largest number of summits that are compared."""
MAX_STARTS = 6
"""The largest number of starting points."""
MIN_DIP = 3.0
"""Two summits are in different basins if the log density between them is lower by this."""
NUM_BETWEEN = 15
"""Points at which the density between two summits is evaluated."""


class DistinctStarts(NamedTuple):
    """Starting points in different basins."""

    points: list[Float[np.ndarray, " d"]]
    is_complete: bool
    """Whether all basins that were seen have one."""


def distinct_starts(
    rng: np.random.Generator,
    evaluate: Evaluate,
    start: Float[np.ndarray, " d"],
    num_points: int,
    is_dense: bool,
) -> DistinctStarts:
    """Climbs from many points at once, and finds one point for each basin.

    Args:
        rng: chooses the points.
        evaluate: the model.
        start: the first point; it stands for its own basin.
        num_points: how many points `evaluate` takes at once.
        is_dense: whether `evaluate` expects dense normals.
    """
    size = len(start)
    plain = WhiteningNormal(np.zeros(size), np.eye(size) if is_dense else np.ones(size))
    number = num_points * next((n for d, n in NUM_BATCHES.items() if size <= d), 1)
    points = rng.uniform(-2.0, 2.0, (number, size))
    # Every other one from further away: modes may lie outside of the box.
    points[::2] *= 5.0
    points[0] = start
    summits, heights = _climb(evaluate, plain, points)
    best = np.argsort(-heights)
    # Lower ones have no mass, unless they are wider by orders of magnitude everywhere.
    high = heights[best] > heights[best[0]] - 20.0 - 3.0 * size
    best = _without_copies(summits, best[high])
    dip = lambda one, other: _dip(
        evaluate, plain, num_points, summits[[one, other]], heights[[one, other]]
    )
    leaders: list[int] = []
    for one in best[:MAX_CANDIDATES]:
        if all(dip(one, other) > MIN_DIP for other in leaders):
            leaders.append(one)
    is_complete = len(best) <= MAX_CANDIDATES and len(leaders) <= MAX_STARTS
    # The start stands for the summit that it climbed.
    others = [one for one in leaders[:MAX_STARTS] if not _is_near(summits[one], summits[0])]
    return DistinctStarts([start, *summits[others]], is_complete)


def _climb(
    evaluate: Evaluate, plain: WhiteningNormal, points: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Climbs by resilient propagation: step sizes grow while the sign of a slope stays."""
    steps, before = np.full(points.shape, 0.1), np.zeros_like(points)
    best, heights = points.copy(), np.full(len(points), -np.inf)
    for _ in range(NUM_CLIMBING_STEPS):
        here = evaluate(plain, points)
        higher = here.is_finite & (here.logdensity > heights)
        best[higher], heights[higher] = points[higher], here.logdensity[higher]
        score = np.where(here.is_finite[:, None], here.score, -before)
        turned = np.sign(score) * np.sign(before)
        steps = np.clip(
            steps * np.where(turned > 0, 1.2, np.where(turned < 0, 0.5, 1.0)), 1e-6, 5.0
        )
        before = np.where(turned < 0, 0.0, score)
        points = np.where(
            here.is_finite[:, None], points + steps * np.sign(before), 0.5 * (points + best)
        )
    return best, heights


def _without_copies(summits: Float[np.ndarray, "n d"], order: np.ndarray) -> list[int]:
    """Drops points next to a better one."""
    kept: list[int] = []
    for one in order:
        near = (_is_near(summits[one], summits[other]) for other in kept)
        if not any(near):
            kept.append(int(one))
    return kept


def _is_near(one: Float[np.ndarray, " d"], other: Float[np.ndarray, " d"]) -> bool:
    return bool(np.max(np.abs(one - other) / (1 + np.abs(other))) < 0.05)


def _dip(
    evaluate: Evaluate,
    plain: WhiteningNormal,
    num_points: int,
    ends: Float[np.ndarray, "2 d"],
    heights: Float[np.ndarray, " 2"],
) -> float:
    """Returns by how much the density is lower between two points than at the lower one."""
    share = np.linspace(0.0, 1.0, NUM_BETWEEN + 2)[1:-1, None]
    between = (1 - share) * ends[0] + share * ends[1]
    batch = np.resize(between, (num_points * -(-len(between) // num_points), ends.shape[1]))
    values = evaluate(plain, batch).logdensity
    return float(np.min(heights) - np.min(values))
