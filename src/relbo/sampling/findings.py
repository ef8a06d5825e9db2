"""What a run shows about its own draws: reasons not to trust them, and what to try."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.sampling.diagnostics import (
    MAX_RANKED,
    chain_spread,
    drift,
    stein_errors,
    stuck_chains,
    tail_index,
)

MAX_ERRORS = 5.0
"""Standard errors beyond which an identity counts as violated."""
MIN_EFFECT = 0.1
"""Violations smaller than this, in posterior standard deviations, do not matter."""
GROSS_ERRORS, GROSS_EFFECT = 3.5, 0.5
"""Fewer standard errors are enough for a violation as large as this."""
LARGEST = 1e20
"""Larger draws are a sign of a posterior without finite mass."""
MAX_CHAIN_SPREAD = 0.25
"""The variance between chains over that within them: four autocorrelation times each."""


MIN_TAIL_DRAWS = 400
HEAVY_TAIL = 0.6
"""A tail index above which a variance may not exist; estimates have an error of about 0.1."""
MAX_SHARE_AT_EDGE = 0.002
"""The largest share of draws that may be rounded to an edge."""


class Finding(NamedTuple):
    """Something that a run noticed about itself."""

    text: str
    """What was seen and what to try, in plain words."""
    is_fatal: bool = True
    """Whether the draws should not be trusted because of it."""
    kind: str = ""
    """`"precision"` if more digits would help."""


class UnconstrainedChains(NamedTuple):
    """All draws of a run in unconstrained space, with the scores there."""

    draws: Float[np.ndarray, "n c d"]
    score: Float[np.ndarray, "n c d"]
    logdensity: Float[np.ndarray, "n c"]
    acceptance: Float[np.ndarray, "n c"]


def findings_of_chains(
    chains: UnconstrainedChains, names: list[str], resolution: float
) -> list[Finding]:
    """Examines the draws of a run.

    Args:
        chains: the draws.
        names: a name for each coordinate.
        resolution: the relative rounding error of the numbers that the model computes with.
    """
    if not np.all(np.isfinite(chains.draws)):
        return [
            Finding(
                "Some draws are not finite: the posterior has no finite mass (a flat prior "
                "without enough data?), or numbers overflow. Give every parameter a proper "
                "prior."
            )
        ]
    found = _of_precision(chains, names, resolution)
    found += _of_identities(chains, names)
    if chains.draws.shape[0] >= 8:
        found += _of_mixing(chains, names)
    return found


def _of_precision(
    chains: UnconstrainedChains, names: list[str], resolution: float
) -> list[Finding]:
    """Looks for numbers that the precision cannot resolve."""
    found = []
    spread = chains.draws.std((0, 1))
    steps = resolution * np.abs(chains.draws).max((0, 1)) / np.maximum(spread, 1e-300)
    worst = int(np.argmax(steps))
    is_single = resolution > 1e-10
    remedy = "Enable float64 (numpyro.enable_x64()), or centre" if is_single else "Centre"
    remedy += " and scale the data."
    if steps[worst] > 0.02:
        found.append(
            Finding(
                f"The precision is too low for {names[worst]}: neighbouring numbers differ by "
                f"{steps[worst]:.2g} posterior standard deviations. {remedy}",
                kind="precision",
            )
        )
    step = resolution * float(np.median(np.abs(chains.logdensity)))
    if step > 0.25:
        found.append(
            Finding(
                f"The precision is too low for the log density: its values near "
                f"{np.median(chains.logdensity):.3g} are rounded to {step:.2g}. {remedy}",
                kind="precision",
            )
        )
    return found


def findings_of_edges(
    values: Mapping[str, Float[np.ndarray, "chains draws *shape"]],
    logdensity: Float[np.ndarray, "chains draws"],
) -> list[Finding]:
    """Looks for draws that the precision moved to the edge of their support.

    Args:
        values: constrained draws of the latent sites.
        logdensity: the log density, which tells different draws apart.
    """
    found = []
    for site, draws in values.items():
        flat = draws.reshape(*draws.shape[:2], -1)
        if np.max(np.abs(flat)) > LARGEST:
            found.append(
                Finding(
                    f"Draws of {site} are as large as {np.max(np.abs(flat)):.2g}: it seems to "
                    "have no proper posterior. Give it a proper prior."
                )
            )
            continue
        lowest, highest = flat.min((0, 1)), flat.max((0, 1))
        for edge in (lowest, highest):
            # A constant, such as the zeros of a triangular matrix, has no edge.
            at_edge = (flat == edge) & (lowest < highest)
            worst = int(np.argmax(at_edge.mean((0, 1))))
            different = len(np.unique(logdensity[at_edge[..., worst]]))
            if different > max(2, MAX_SHARE_AT_EDGE * logdensity.size):
                share = at_edge[..., worst].mean()
                found.append(
                    Finding(
                        f"{share:.1%} of the draws of {site} are rounded to {edge[worst]:.6g}, "
                        "the edge of its support. Use float64, or model its logarithm.",
                        kind="precision",
                    )
                )
                break
    return found


def findings_of_simplices(
    values: Mapping[str, np.ndarray],
    unconstrained: Mapping[str, np.ndarray],
    resolution: float,
) -> list[Finding]:
    """Looks for simplices whose last element is what rounding leaves of the others.

    An element takes a share of what those before it leave, and a share is rounded to 1 when
    its unconstrained value is large.

    Args:
        values: constrained draws of the latent sites.
        unconstrained: unconstrained draws; they have one element less if it is a simplex.
        resolution: the relative rounding error of the numbers that the model computes with.
    """
    found = []
    for site, draws in unconstrained.items():
        is_simplex = draws.ndim > 2 and values[site].shape[-1] == draws.shape[-1] + 1
        if not is_simplex or draws.ndim != values[site].ndim:
            continue
        share = float(np.mean(np.any(draws > -np.log(resolution) - 3.0, -1)))
        if share > MAX_SHARE_AT_EDGE:
            remedy = "Use float64, or" if resolution > 1e-10 else "Use"
            found.append(
                Finding(
                    f"In {share:.1%} of the draws of {site} the last element is lost in "
                    f"rounding. {remedy} a prior that is less concentrated at its edges.",
                    kind="precision",
                )
            )
    return found


def findings_of_tails(values: Mapping[str, np.ndarray]) -> list[Finding]:
    """Looks for draws whose mean or variance may not exist.

    Args:
        values: constrained draws of the latent sites, `[chains, draws, ...]`.
    """
    found = []
    for site, draws in values.items():
        flat = draws.reshape(draws.shape[0] * draws.shape[1], -1).astype(float)
        if len(flat) < MIN_TAIL_DRAWS or flat.shape[1] > MAX_RANKED:
            continue
        index = float(np.max(tail_index(flat)))
        if index > HEAVY_TAIL:
            missing = "mean and variance" if index > 1.0 else "variance"
            found.append(
                Finding(
                    f"The tails of {site} are heavy (index {index:.2f}): its {missing} may not "
                    "exist or converge slowly. Report quantiles.",
                    is_fatal=False,
                )
            )
    return found


def finding_of_necks(rejected: float) -> Finding:
    """Says that steps are too long for a narrow place."""
    return Finding(
        f"The steps are too long for a narrow place: {rejected:.0%} of those that start in a "
        "tail of a parameter that others depend on are rejected. Run longer, or write the "
        "model so that scales and what they scale are independent (non-centred)."
    )


def findings_of_rounds(
    before: Float[np.ndarray, "chains draws d"],
    after: Float[np.ndarray, "chains2 draws2 d"],
    names: list[str],
) -> list[Finding]:
    """Compares the tails of two runs in different coordinates."""
    for level in (0.01, 0.05, 0.95, 0.99):
        bound = np.quantile(before, level, axis=(0, 1))
        shares = [(run <= bound).mean(1) for run in (before, after)]
        errors = np.hypot(*(share.std(0, ddof=1) / len(share) ** 0.5 for share in shares))
        change = shares[1].mean(0) - shares[0].mean(0)
        allowed = 0.2 * min(level, 1 - level) + 3.0 * errors
        worst = int(np.argmax(np.abs(change) - allowed))
        if abs(change[worst]) > allowed[worst]:
            return [
                Finding(
                    f"Two runs differ in a tail of {names[worst]}: the share of draws below "
                    f"one value changed by {change[worst]:+.3f}. Run longer, or write the model"
                    " so that scales and what they scale are independent (non-centred)."
                )
            ]
    return []


def _of_identities(chains: UnconstrainedChains, names: list[str]) -> list[Finding]:
    """Compares the draws with their scores by Stein's identities."""
    slope, scale = stein_errors(chains.draws, chains.score)
    found = []
    for effect, errors, says in (
        (*slope, "the density still rises or falls on average"),
        (*scale, "the draws are not as wide as the density, or it is flat"),
    ):
        size = effect.size
        gross = (np.abs(effect) > GROSS_EFFECT) & (
            np.abs(errors) > _among_many(GROSS_ERRORS, size)
        )
        clear = (np.abs(effect) > MIN_EFFECT) & (np.abs(errors) > _among_many(MAX_ERRORS, size))
        bad = np.where(gross | clear, np.abs(errors), 0.0)
        worst = int(np.argmax(bad))
        if bad[worst] > 0:
            found.append(
                Finding(
                    f"The draws do not fit the density at {names[worst]}: {says} (off by "
                    f"{effect[worst]:+.2g}, {min(bad[worst], 1e3):.0f} standard errors). Check "
                    "that the prior is proper, and look for narrow places or jumps in the "
                    "density."
                )
            )
            break
    return found


def _among_many(errors: float, size: int) -> float:
    """Raises a number of standard errors, since one of many coordinates is off by chance."""
    return (errors**2 + 2 * max(0.0, np.log(size / 100))) ** 0.5


def _of_mixing(chains: UnconstrainedChains, names: list[str]) -> list[Finding]:
    found = []
    by_chain = np.swapaxes(chains.draws, 0, 1)
    spread = chain_spread(by_chain)
    worst = int(np.argmax(spread))
    if spread[worst] > MAX_CHAIN_SPREAD:
        found.append(
            Finding(
                f"The chains are too short for {names[worst]}: they moved over a part of the "
                "posterior each. Run longer (more seconds or draws), or rewrite the model so "
                "that parameters are less dependent."
            )
        )
    effect, errors = drift(by_chain)
    bad = np.where(np.abs(effect) > MIN_EFFECT, np.abs(errors), 0.0)
    worst = int(np.argmax(bad))
    if bad[worst] > _among_many(MAX_ERRORS, bad.size):
        found.append(
            Finding(
                f"The chains still drift at {names[worst]} (by {effect[worst]:+.2g} standard "
                "deviations from the first to the second half). Run longer, and check that the "
                "prior is proper."
            )
        )
    if np.any(stuck_chains(chains.acceptance.T, chains.logdensity.T)):
        found.append(Finding("Some chains are stuck."))
    return found
