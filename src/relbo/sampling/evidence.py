"""The evidence of a posterior, enclosed by annealed paths from both sides."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.sampling.ensemble import ChainDraws, Ensemble

PATH_LENGTHS = (8, 32, 128)
"""Numbers of annealed steps that are tried until both ends meet."""
MAX_GAP = 0.1
"""The largest distance of the two ends that counts as meeting."""
FREE_EVALUATIONS = 700
"""Evaluations of all chains that weighing may take, whatever sampling took."""


SMALL, LARGE = 50, 200
"""Beyond these dimensions longer paths are tried if they may help, and not at all."""


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
        return -value, stderr

    @property
    def has_met(self) -> bool:
        """Whether the two estimates agree."""
        (lower, below), (upper, above) = self.lower, self.upper
        if max(below, above) > MAX_GAP:
            return False
        return bool(abs(upper - lower) < MAX_GAP + 2 * np.hypot(below, above))


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
    num_rounds = -(-num_draws // ensemble.num_chains)
    points = chains.draws.reshape(-1, chains.draws.shape[2])
    some = np.linspace(0, len(points) - 1, num_rounds * ensemble.num_chains).astype(int)
    sampling = len(chains.draws) * max(1.0, 1.5 / chains.step_size)
    size = ensemble.problem.size
    budget = 0.0 if size > LARGE else max(FREE_EVALUATIONS, 2 * sampling)
    for num_steps in PATH_LENGTHS:
        ends, forward = ensemble.weigh(num_rounds, num_steps)
        weights = LogWeights(forward, ensemble.weigh_backwards(points[some], num_steps))
        is_last = num_steps == PATH_LENGTHS[-1] or 8 * num_rounds * num_steps > budget
        is_hopeless = size > SMALL and weights.upper[0] - weights.lower[0] > 1.0
        if weights.has_met or is_last or is_hopeless or ensemble.is_late():
            return ends, weights
    raise AssertionError("there is a last length")


def log_mean_weight(log_weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Computes the log of the mean weight, and its standard error by the delta method."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return float(top), np.inf
    weights = np.exp(log_weights - top)
    mean = weights.mean()
    return float(top + np.log(mean)), float(weights.std(ddof=1) / mean / len(weights) ** 0.5)
