"""Moves the draws of one posterior to another one, and weighs them."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from relbo.gaussian import Evaluate, WhiteningNormal
from relbo.problem import Problem
from relbo.sampling.continuing import draws_for, normal_near
from relbo.sampling.independent import AffineMap, Proposals, corrected
from relbo.sampling.posterior import Posterior

MAX_CORRECTIONS = 4
GOOD_SHARE = 0.8
"""A share of effective draws that no other map needs to improve."""


class OldDraws(NamedTuple):
    """Draws of a posterior in white coordinates, one chain after another."""

    normal: WhiteningNormal
    white: Float[np.ndarray, "n d"]
    logdensity: Float[np.ndarray, " n"]
    """In white coordinates, without the determinant of the normal's factor."""

    @classmethod
    def of(cls, posterior: Posterior, problem: Problem) -> "OldDraws":
        by_chain = np.swapaxes(draws_for(posterior, problem, "posterior"), 0, 1)
        points = by_chain.reshape(-1, problem.size)
        normal = normal_near(points) if posterior.tuning is None else posterior.tuning.normal
        white = normal.pull(points)
        lp = np.asarray(posterior.sample_stats["lp"], float).ravel()
        return cls(normal, white, lp + _log_det_of_bend(normal, white))

    def at(self, rows: Int[np.ndarray, " m"]) -> "OldDraws":
        return self._replace(white=self.white[rows], logdensity=self.logdensity[rows])


def moved(
    draws: OldDraws, normal: WhiteningNormal, evaluate: Evaluate, batch_size: int
) -> Proposals:
    """Moves draws to where a normal maps their white coordinates.

    Args:
        draws: draws of the old posterior.
        normal: the map.
        evaluate: the new posterior.
        batch_size: the number of points that `evaluate` takes at once.

    Returns:
        The moved draws; the importance weights are those of the new posterior.
    """
    number = len(draws.white)
    # The last batch is filled up with the first draws.
    rows = np.arange(-(-number // batch_size) * batch_size) % number
    there = evaluate(normal, draws.white[rows])
    is_finite = there.is_finite[:number]
    white, logdensity, score = (part[:number] for part in there)
    log_det = normal.log_det - draws.normal.log_det
    log_weights = logdensity - draws.logdensity + log_det
    is_fine = is_finite & np.isfinite(log_weights)
    return Proposals(
        normal.push(white),
        normal.score(white, score),
        logdensity - _log_det_of_bend(normal, white),
        np.where(is_fine, log_weights, -np.inf),
    )


def best_map(
    pilots: OldDraws, evaluate: Evaluate, batch_size: int
) -> tuple[WhiteningNormal, Proposals]:
    """Finds a map that makes the weights of pilots even.

    Returns:
        The map, and the pilots that it moved.
    """
    normal = pilots.normal
    here = moved(pilots, normal, evaluate, batch_size)
    tried = [(effective_share(here.log_weights), normal, here)]
    for _ in range(MAX_CORRECTIONS):
        best = max(tried, key=lambda one: one[0])
        # Where scores are far from linear functions, corrections do not converge.
        is_lost = len(tried) > 2 and best is tried[-3]
        if best[0] >= GOOD_SHARE or is_lost or not normal.is_dense:
            break
        normal = _corrected_normal(normal, pilots, here)
        here = moved(pilots, normal, evaluate, batch_size)
        tried.append((effective_share(here.log_weights), normal, here))
    return max(tried, key=lambda one: one[0])[1:]


def _corrected_normal(
    normal: WhiteningNormal, pilots: OldDraws, here: Proposals
) -> WhiteningNormal:
    """Corrects the map by the scores at the moved pilots."""
    bent = pilots.white
    if normal.dependence is not None:
        bent, _ = normal.dependence.bend(bent)
    straight = here._replace(points=bent, score=normal.pulled_score(here.score))
    change, _ = corrected(AffineMap.identity(len(normal.loc)), straight)
    shift, factor = (np.asarray(part, float) for part in (change.shift, change.factor))
    return normal.moved(shift, factor)


def _log_det_of_bend(normal: WhiteningNormal, white: Float[np.ndarray, "n d"]) -> Any:
    return 0.0 if normal.dependence is None else normal.dependence.bend(white)[1]


def effective_share(log_weights: Float[np.ndarray, " n"]) -> float:
    """Computes the effective number of weighted draws, as a share of their number."""
    weights = relative_weights(log_weights)
    return float(weights.sum() ** 2 / max(np.sum(weights**2), 1e-300) / len(weights))


def relative_weights(log_weights: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Returns the weights relative to the largest one; NaN counts as zero."""
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    top = np.max(log_weights)
    return np.exp(log_weights - top) if np.isfinite(top) else np.zeros(len(log_weights))


def resampled(
    rng: np.random.Generator, log_weights: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Draws positions in proportion to weights, systematically and in their order."""
    ends = np.cumsum(relative_weights(log_weights))
    number = len(ends)
    places = (np.arange(number) + rng.uniform()) / number
    return np.minimum(np.searchsorted(ends / ends[-1], places, "right"), number - 1)
