"""Starting points in different basins of a density, found by climbing from many points."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from relbo.gaussian.evaluation import Evaluate
from relbo.gaussian.whitening import WhiteningNormal

NUM_CLIMBING_STEPS = 50
FIRST_STEPS = (0.1, 1e-3)
"""Step sizes that climbs begin with: small ones do not leave a narrow basin."""
NUM_BATCHES = {3: 6, 20: 2}
"""How many batches of points climb, by the largest dimension; one beyond."""
MAX_MORE = 2
"""How many times the number of climbs is doubled while they find new basins."""
MAX_UNSEEN = 0.03
"""The largest probability that one more climb ends in a basin that none has found."""
MAX_COMPARED = 48
"""The largest number of summits that are compared."""
MAX_STARTS = 12
"""The largest number of starting points."""
MIN_DISTANCE, NEAR = 0.002, 0.05
"""Summits that are closer to each other, relative to their distance from zero, are one; those
that a climb has not reached yet are so from further away."""
MIN_DIP = 3.0
"""Two summits are in different basins if the log density between them is lower by this."""
NUM_BETWEEN = 15
"""Points at which the density between two summits is evaluated."""


class DistinctStarts(NamedTuple):
    """Starting points in different basins."""

    points: list[Float[np.ndarray, " d"]]
    is_complete: bool
    """Whether all basins that were seen have one, and hardly any was not seen."""
    summit: Float[np.ndarray, " d"]
    """The highest point that was found."""


class Climbs(NamedTuple):
    """Where climbs ended."""

    summits: Float[np.ndarray, "n d"]
    heights: Float[np.ndarray, " n"]
    has_arrived: Bool[np.ndarray, " n"]
    """Whether the last steps were short."""

    def sorted(self) -> "Climbs":
        """Returns the climbs that were on the support, the highest first."""
        order = np.argsort(-self.heights)
        return Climbs(*(part[order[np.isfinite(self.heights[order])]] for part in self))


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
    plain = plain_normal(size, is_dense)
    number = num_points * next((n for d, n in NUM_BATCHES.items() if size <= d), 1)
    first = climb(evaluate, plain, np.concatenate([[start], _spread(rng, number - 1, size)]))
    found, basins = first, basins_of(evaluate, plain, num_points, first.sorted())
    for _ in range(MAX_MORE if is_dense else 0):
        if basins.probability_unseen < MAX_UNSEEN:
            break
        more = climb(evaluate, plain, _spread(rng, len(found.heights), size))
        found = Climbs(*map(np.concatenate, zip(found, more, strict=True)))
        basins = basins_of(evaluate, plain, num_points, found.sorted())
    is_complete = len(basins.leaders) <= MAX_STARTS and basins.probability_unseen < MAX_UNSEEN
    summits = list(found.sorted().summits[basins.leaders[:MAX_STARTS]])
    # The start stands for the only summit if it climbed it itself.
    is_same = len(summits) == 1 and _is_near(summits[0], first.summits[0])
    points = [start] if is_same else [start, *summits]
    return DistinctStarts(points, is_complete, summits[0] if summits else start)


def plain_normal(size: int, is_dense: bool) -> WhiteningNormal:
    """Returns the normal whose white coordinates are the unconstrained ones."""
    return WhiteningNormal(np.zeros(size), np.eye(size) if is_dense else np.ones(size))


def _spread(rng: np.random.Generator, number: int, size: int) -> Float[np.ndarray, "n d"]:
    points = rng.uniform(-2.0, 2.0, (number, size))
    # Every other one from further away: modes may lie outside of the box.
    points[::2] *= 5.0
    return points


def climb(
    evaluate: Evaluate, plain: WhiteningNormal, points: Float[np.ndarray, "n d"]
) -> Climbs:
    """Climbs by resilient propagation: step sizes grow while the sign of a slope stays."""
    first_steps = np.resize(np.repeat(FIRST_STEPS, 2), len(points))
    steps, before = np.ones(points.shape) * first_steps[:, None], np.zeros_like(points)
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
    return Climbs(best, heights, np.max(steps / (1 + np.abs(best)), 1) < 0.02)


class Basins(NamedTuple):
    """The basins in which climbs ended."""

    leaders: list[int]
    """The highest climb of each basin with enough height, the highest first."""
    probability_unseen: float
    """The probability that one more climb ends in a new basin, by Good and Turing: the share
    of climbs that were alone in theirs."""


def basins_of(
    evaluate: Evaluate, plain: WhiteningNormal, num_points: int, climbs: Climbs
) -> Basins:
    """Tells apart the basins in which climbs ended; they are sorted by height."""
    summits, heights, has_arrived = climbs
    if not len(heights):
        return Basins([], 0.0)
    copies = _copies(climbs)
    kinds = np.unique(copies)
    if len(kinds) > MAX_COMPARED:
        # The highest may all be next to one summit, so others are among them.
        rest = np.linspace(MAX_COMPARED // 2, len(kinds) - 1, MAX_COMPARED // 2).astype(int)
        kinds = kinds[np.append(np.arange(MAX_COMPARED // 2), rest)]
    dip = lambda ones, others: _dips(
        evaluate, plain, num_points, summits, heights, ones, others
    )
    pairs = enumerate(kinds.tolist())
    nearest = np.array([_nearest(summits, kinds[:k], one) for k, one in pairs])
    alone = np.append(True, dip(kinds[1:], nearest[1:]) > MIN_DIP)
    in_basin = dict(zip(kinds, np.where(alone, kinds, nearest), strict=True))
    leaders: list[int] = []
    for one in kinds[alone]:
        joined = np.flatnonzero(
            dip(np.full(len(leaders), one), np.array(leaders, int)) <= MIN_DIP
        )
        if len(joined):
            in_basin[one] = leaders[joined[0]]
        else:
            leaders.append(int(one))
    root = lambda one: one if in_basin[one] == one else root(in_basin[one])
    ends = [root(one) for one in copies[has_arrived] if one in in_basin]
    _, counts = np.unique(ends, return_counts=True)
    unseen = np.sum(counts == 1) / max(len(ends), 1) if len(counts) > 1 else 0.0
    # Lower ones have no mass, unless they are wider by orders of magnitude everywhere.
    lowest = heights[0] - 20.0 - 3.0 * summits.shape[1]
    return Basins([one for one in leaders if heights[one] > lowest], float(unseen))


def _copies(climbs: Climbs) -> Int[np.ndarray, " n"]:
    """Returns for each climb the first one that it ended next to."""
    summits, heights, has_arrived = climbs
    first = np.arange(len(heights))
    for one in range(1, len(heights)):
        near = np.max(np.abs(summits[:one] - summits[one]) / (1 + np.abs(summits[one])), 1)
        if np.min(near) < (MIN_DISTANCE if has_arrived[one] else NEAR):
            first[one] = first[np.argmin(near)]
    return first


def _is_near(one: Float[np.ndarray, " d"], other: Float[np.ndarray, " d"]) -> bool:
    return bool(np.max(np.abs(one - other) / (1 + np.abs(other))) < NEAR)


def _nearest(summits: Float[np.ndarray, "n d"], others: Int[np.ndarray, " k"], one: int) -> int:
    """Returns the nearest of some points; the point itself if there are none."""
    if not len(others):
        return one
    return int(others[np.argmin(np.sum((summits[others] - summits[one]) ** 2, 1))])


def _dips(
    evaluate: Evaluate,
    plain: WhiteningNormal,
    num_points: int,
    summits: Float[np.ndarray, "n d"],
    heights: Float[np.ndarray, " n"],
    ones: Int[np.ndarray, " k"],
    others: Int[np.ndarray, " k"],
) -> Float[np.ndarray, " k"]:
    """Returns by how much the density is lower between two points than at the lower one."""
    if not len(ones):
        return np.zeros(0)
    share = np.linspace(0.0, 1.0, NUM_BETWEEN + 2)[1:-1, None]
    between = (1 - share) * summits[ones][:, None] + share * summits[others][:, None]
    points = between.reshape(-1, summits.shape[1])
    batch = np.resize(points, (num_points * -(-len(points) // num_points), points.shape[1]))
    values = evaluate(plain, batch).logdensity[: len(points)].reshape(len(ones), -1)
    return np.minimum(heights[ones], heights[others]) - np.min(values, 1)
