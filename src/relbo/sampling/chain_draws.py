"""What chains visited."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

PARTS = ("draws", "score", "logdensity", "acceptance", "energy", "diverging", "num_steps")
"""The fields of `ChainDraws` that have a value for each draw."""


class ChainDraws(NamedTuple):
    """What the chains visited, in unconstrained space; the second axis is the chain."""

    draws: Float[np.ndarray, "n c d"]
    score: Float[np.ndarray, "n c d"]
    """The score at the draws."""
    logdensity: Float[np.ndarray, "n c"]
    acceptance: Float[np.ndarray, "n c"]
    energy: Float[np.ndarray, "n c"]
    """The energy at the start of each trajectory."""
    diverging: Bool[np.ndarray, "n c"]
    """Whether a trajectory lost its energy."""
    num_steps: Int[np.ndarray, "n c"]
    """The leapfrogs of each trajectory."""
    step_size: float
    num_superchains: int
    spacing: float = 1.0
    """Iterations of a chain per draw."""

    def sample_stats(self) -> dict[str, np.ndarray]:
        """Returns statistics under ArviZ's names, `[num_chains, draws]`."""
        return {
            "lp": self.logdensity.T,
            "acceptance_rate": self.acceptance.T,
            "energy": self.energy.T,
            "diverging": self.diverging.T,
            "n_steps": self.num_steps.T,
            "step_size": np.full(self.energy.T.shape, self.step_size),
        }

    def at(self, source: Int[np.ndarray, " m"]) -> "ChainDraws":
        """Returns other draws in the places of these: those at positions in all of them."""
        moved = lambda part: part.reshape(-1, *part.shape[2:])[source].reshape(part.shape)
        return self._replace(**{name: moved(getattr(self, name)) for name in PARTS})

    def thinned(self, length: int) -> "ChainDraws":
        """Keeps `length` evenly spaced draws of each chain."""
        number = len(self.draws)
        kept = np.linspace(0, number - 1, min(length, number)).round().astype(int)
        return self._replace(
            spacing=self.spacing * number / len(kept),
            **{name: getattr(self, name)[kept] for name in PARTS},
        )


def joined(*parts: ChainDraws) -> ChainDraws:
    """Joins runs of the same chains, one after another."""
    if len(parts) == 1:
        return parts[0]
    both = lambda name: np.concatenate([getattr(part, name) for part in parts])
    return parts[-1]._replace(**{name: both(name) for name in PARTS})


def default_num_superchains(num_chains: int) -> int:
    """Returns about as many groups as there are chains in each."""
    divisors = [k for k in range(2, num_chains) if num_chains % k == 0]
    return min(divisors, key=lambda k: abs(np.log(k * k / num_chains)), default=num_chains)
