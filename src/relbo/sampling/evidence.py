"""The evidence of a posterior, enclosed by annealed paths from both sides."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from relbo.evaluate.importance import log_mean_weight
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.ensemble import Ensemble

PATH_LENGTHS = (8, 32, 128)
"""Numbers of annealed steps that are tried until both ends meet."""
MAX_GAP = 0.1
"""The largest distance of the two ends that counts as meeting."""
FREE_EVALUATIONS = 700
"""Evaluations that weighing may take in few dimensions, whatever sampling took."""
SMALL = 50
"""Beyond this dimension ends seldom meet: longer paths are tried if they are cheap."""


class LogWeights(NamedTuple):
    """Log weights of annealed paths from the normal to the posterior, and back."""

    forward: Float[np.ndarray, " n"]
    backward: Float[np.ndarray, " m"]

    @property
    def lower(self) -> tuple[float, float]:
        """The estimate from the normal's side, with its standard error."""
        return log_mean_weight(self.forward)

    @property
    def upper(self) -> tuple[float, float]:
        """The estimate from the draws' side; it assumes that they are from the posterior."""
        value, stderr = log_mean_weight(-self.backward)
        return float(np.log(self._share) - value), stderr

    @property
    def _share(self) -> float:
        """The share of paths with a weight: no path from the draws leads to the others."""
        return max(float(np.mean(self.forward > -np.inf)), 1e-300)

    def without_lost_paths(self) -> "LogWeights":
        """Returns weights with the same estimates in which every path has one."""
        kept = self.forward[self.forward > -np.inf]
        if not len(kept):
            return self
        forward = np.resize(kept, len(self.forward))
        return LogWeights(*(part + np.log(self._share) for part in (forward, self.backward)))

    def shifted(self, value: float) -> "LogWeights":
        """Returns the weights of an evidence that is larger by `value`."""
        return LogWeights(self.forward + value, self.backward + value)

    @property
    def middle(self) -> tuple[float, float]:
        """The estimate from both sides by Bennett's acceptance ratio, with its standard error.

        It is the log Z at which w / (w + Z) has the same mean on one side as Z / (w + Z) on the
        other. Biases of the two ends cancel to a large part.
        """
        forward, backward = (part[np.isfinite(part)] + np.log(self._share) for part in self)
        if not (len(forward) > 1 and len(backward) > 1):
            return -np.inf, np.inf
        low = float(min(forward.min(), backward.min()))
        high = float(max(forward.max(), backward.max()))
        sides = lambda value: (expit(forward - value), expit(value - backward))
        for _ in range(60):
            middle = 0.5 * (low + high)
            ahead, back = sides(middle)
            low, high = (middle, high) if ahead.mean() > back.mean() else (low, middle)
        tiny = np.finfo(float).tiny
        relative = [
            part.std(ddof=1) / max(part.mean(), tiny) / len(part) ** 0.5 for part in sides(low)
        ]
        missing = ((1 / self._share - 1) / len(self.forward)) ** 0.5
        return float(low), float(np.linalg.norm([*relative, missing]))

    @property
    def gap(self) -> float:
        """How far the two estimates are apart, or might be by their standard errors."""
        (lower, below), (upper, above) = self.lower, self.upper
        return float(max(abs(upper - lower), below, above))

    @property
    def has_met(self) -> bool:
        """Whether the two estimates agree."""
        (lower, below), (upper, above) = self.lower, self.upper
        if max(below, above) > MAX_GAP:
            return False
        return bool(abs(upper - lower) < MAX_GAP + 2 * np.hypot(below, above))


class EvidenceIncrement(NamedTuple):
    """By how much new data changed the logarithm of the evidence."""

    value: float
    stderr: float
    total_stderr: float = 0.0
    """The error of all increments since the evidence was estimated, with this one."""

    def after(self, before: "EvidenceIncrement | None") -> "EvidenceIncrement":
        """Returns this increment after another one."""
        error = 0.0 if before is None else before.total_stderr
        return self._replace(total_stderr=float(np.hypot(error, self.stderr)))


def weigh(
    ensemble: Ensemble, chains: ChainDraws, num_draws: int
) -> tuple[np.ndarray, LogWeights]:
    """Weighs draws of the normal by annealed paths, longer ones until both ends meet.

    Args:
        ensemble: the chains, after sampling.
        chains: draws of the posterior.
        num_draws: number of paths in each direction.

    Returns:
        Where the forward paths ended, and the log weights.
    """
    num_rounds = ensemble.affordable_rounds(
        -(-num_draws // ensemble.num_chains), PATH_LENGTHS[0]
    )
    points = chains.draws.reshape(-1, chains.draws.shape[2])
    some = np.linspace(0, len(points) - 1, num_rounds * ensemble.num_chains).astype(int)
    sampling = len(chains.draws) * max(1.0, 1.5 / chains.step_size)
    size = ensemble.problem.size
    budget = 0.5 * sampling if size > SMALL else max(FREE_EVALUATIONS, 2 * sampling)
    tried = []
    for num_steps in PATH_LENGTHS:
        ends, forward = ensemble.weigh(num_rounds, num_steps)
        weights = LogWeights(forward, ensemble.weigh_backwards(points[some], num_steps))
        tried.append((ends, weights))
        is_last = 8 * num_rounds * num_steps > budget
        is_hopeless = size > SMALL and weights.upper[0] - weights.lower[0] > 1.0
        if weights.has_met or is_last or is_hopeless or ensemble.is_late():
            break
    # Longer paths are better, unless a narrow place throws them off.
    return min(tried, key=lambda one: one[1].gap)
