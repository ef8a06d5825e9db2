"""Posteriors with several modes: each has its own chains and is weighed by its evidence."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from relbo.gaussian import WhiteningNormal, nearest_mode
from relbo.sampling.chain_draws import PARTS, ChainDraws
from relbo.sampling.evidence import LogWeights
from relbo.sampling.findings import Finding

MAX_WEIGHT_ERROR = 0.05
"""The largest error of a mode's weight that is trusted."""
MIN_STAY = 0.8
"""Modes are separate if this share of chains spends this share of its draws in one of them."""
MAX_ELSEWHERE = 0.5
"""If a larger share of the draws of a mode's chains is in another mode, it is none."""


class Mode(NamedTuple):
    """The draws of one mode, and its share of the posterior."""

    normal: WhiteningNormal
    """Fitted to the draws."""
    chains: ChainDraws
    ends: Float[np.ndarray, "n d"]
    """Where the annealed paths ended."""
    weights: LogWeights
    """Of annealed paths; paths that ended in another mode have no weight."""
    findings: list[Finding]


def with_own_weights(modes: list[Mode]) -> list[Mode]:
    """Removes the weights of paths that ended in another mode."""
    nearest = lambda mode: nearest_mode(mode.ends, [one.normal for one in modes])
    owns = lambda k, mode: np.where(nearest(mode) == k, mode.weights.forward, -np.inf)
    return [
        mode._replace(weights=mode.weights._replace(forward=owns(k, mode)))
        for k, mode in enumerate(modes)
    ]


def are_separate(chains: ChainDraws, modes: list[WhiteningNormal]) -> bool:
    """Whether hardly any chain has moved from one mode to another."""
    size = chains.draws.shape[2]
    visited = nearest_mode(chains.draws.reshape(-1, size), modes)
    visited = visited.reshape(chains.draws.shape[:2])
    shares = np.stack([np.mean(visited == mode, 0) for mode in range(len(modes))])
    # A draw of a wide mode may be next to a narrow one.
    stays = np.max(shares, 0) > MIN_STAY
    homes = np.unique(np.argmax(shares, 0)[stays])
    return bool(np.mean(stays) > MIN_STAY and len(homes) > 1)


def mode_weights(modes: list[Mode]) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Returns the share of each mode, with errors.

    An error is the standard error, or a third of the distance between the shares by the
    estimates from either side if that is clearly larger.
    """
    shares, errors = _shares([mode.weights.middle for mode in modes])
    below, error_below = _shares([mode.weights.lower for mode in modes])
    above, error_above = _shares([mode.weights.upper for mode in modes])
    distance = np.abs(above - below) - 2 * np.hypot(error_below, error_above)
    return shares, np.maximum(errors, distance / 3)


def _shares(
    log_masses: list[tuple[float, float]],
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Returns shares of masses, given their logarithms with standard errors."""
    values, relative = np.array(log_masses).T
    if not np.isfinite(np.max(values)):
        return np.full(len(values), 1 / len(values)), np.full(len(values), np.inf)
    masses = np.exp(values - np.max(values))
    shares = masses / masses.sum()
    # The delta method: an error of one mass changes all shares.
    slopes = np.eye(len(shares)) - shares[:, None]
    errors = np.where(shares > 0, shares * np.where(shares > 0, relative, 0.0), 0.0)
    return shares, np.sqrt((slopes**2) @ errors**2)


def total_weights(modes: list[Mode]) -> LogWeights:
    """Returns weights whose means are the sums of the modes' means."""
    parts = [mode.weights.without_lost_paths() for mode in modes]
    forward = np.concatenate([part.forward for part in parts]) + np.log(len(modes))
    # The inverse weights of all draws average to 1 / Z if each mode has its share of them.
    shares, _ = mode_weights(modes)
    backward = [
        part.backward - np.log(max(share, 1e-300))
        for part, share in zip(parts, shares, strict=True)
    ]
    number = np.maximum(1, np.round(shares * max(map(len, backward)))).astype(int)
    chosen = [part[:count] for part, count in zip(backward, number, strict=True)]
    return LogWeights(forward, np.concatenate(chosen))


def combine(rng: np.random.Generator, modes: list[Mode]) -> tuple[ChainDraws, list[Finding]]:
    """Mixes the draws of all modes by their weights: each chain visits all of them.

    Returns:
        The mixed chains, and what is to be said about the modes.
    """
    shares, errors = mode_weights(modes)
    length = min(len(mode.chains.draws) for mode in modes)
    num_chains = modes[0].chains.draws.shape[1]
    which = _allotted(rng, shares, length, num_chains)
    rows, columns = np.arange(length)[:, None], np.arange(num_chains)[None]

    def mixed(name: str) -> np.ndarray:
        return np.stack([getattr(mode.chains, name)[:length] for mode in modes])[
            which, rows, columns
        ]

    first = modes[0].chains
    chains = first._replace(**{name: mixed(name) for name in PARTS})
    return chains, _findings(modes, shares, errors)


def _allotted(
    rng: np.random.Generator, shares: Float[np.ndarray, " m"], length: int, num_chains: int
) -> Int[np.ndarray, "n c"]:
    """Allots draws to modes so that every chain and all chains together have their shares."""
    ends = np.cumsum(shares)
    grid = (np.arange(length * num_chains) + rng.uniform()) / (length * num_chains)
    which = np.minimum(np.searchsorted(ends, grid, "right"), len(shares) - 1)
    # Systematic: neighbours in the grid go to different chains.
    which = which.reshape(length, num_chains)
    return rng.permuted(which, axis=0)


def _findings(
    modes: list[Mode], shares: Float[np.ndarray, " m"], errors: Float[np.ndarray, " m"]
) -> list[Finding]:
    if len(modes) == 1:
        return modes[0].findings
    listed = ", ".join(f"{s:.3f} ± {e:.3f}" for s, e in zip(shares, errors, strict=True))
    found = [
        Finding(
            f"The posterior has {len(modes)} separate modes. Each was sampled by its own "
            f"chains and weighed by its evidence: {listed}. The verdict is on the modes found.",
            is_fatal=not bool(np.max(errors) <= MAX_WEIGHT_ERROR),
        )
    ]
    for index, mode in enumerate(modes):
        if shares[index] > 0.01:
            found += [
                finding._replace(text=f"Mode {index + 1}: {finding.text}")
                for finding in mode.findings
            ]
    return found
