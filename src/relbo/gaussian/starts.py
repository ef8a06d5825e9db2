"""Starting points in different basins of a density, found by climbing from many points."""

import numpy as np
from jaxtyping import Float

from relbo.gaussian.evaluation import Evaluate
from relbo.gaussian.whitening import WhiteningNormal

NUM_CLIMBING_STEPS = 50
SMALL, NUM_BATCHES = 20, 2
"""The largest dimension in which several batches of points climb, and how many."""
MAX_CANDIDATES = 12
"""The largest number of summits that are compared."""
MAX_STARTS = 6
"""The largest number of starting points."""
MIN_DIP = 3.0
"""Two summits are in different basins if the log density between them is lower by this."""
NUM_BETWEEN = 15
"""Points at which the density between two summits is evaluated."""


def distinct_starts(
    rng: np.random.Generator,
    evaluate: Evaluate,
    start: Float[np.ndarray, " d"],
    num_points: int,
    is_dense: bool,
) -> list[Float[np.ndarray, " d"]]:
    """Climbs from many points at once, and returns one point for each basin.

    Args:
        rng: chooses the points.
        evaluate: the model.
        start: the first point; it stands for its own basin.
        num_points: how many points `evaluate` takes at once.
        is_dense: whether `evaluate` expects dense normals.
    """
    size = len(start)
    plain = WhiteningNormal(np.zeros(size), np.eye(size) if is_dense else np.ones(size))
    number = num_points * (NUM_BATCHES if size <= SMALL else 1)
    points = rng.uniform(-2.0, 2.0, (number, size))
    # Every other one from further away: modes may lie outside of the box.
    points[::2] *= 5.0
    points[0] = start
    summits, heights = _climb(evaluate, plain, points)
    best = np.argsort(-heights)
    # Lower ones have no mass, unless they are wider by orders of magnitude everywhere.
    high = heights[best] > heights[best[0]] - 20.0 - 3.0 * size
    best = _without_copies(summits, best[high])[:MAX_CANDIDATES]
    leaders: list[int] = []
    for one in best:
        between = (
            _dip(evaluate, plain, num_points, summits[[one, other]], heights[[one, other]])
            for other in leaders
        )
        if len(leaders) < MAX_STARTS and all(dip > MIN_DIP for dip in between):
            leaders.append(int(one))
    return [start, *(summits[k] for k in leaders if k != 0)]


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
        near = (
            np.max(np.abs(summits[one] - summits[other]) / (1 + np.abs(summits[other]))) < 0.05
            for other in kept
        )
        if not any(near):
            kept.append(int(one))
    return kept


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
