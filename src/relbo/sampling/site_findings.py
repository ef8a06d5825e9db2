"""What the draws of a problem show about their run."""

import jax.numpy as jnp
import numpy as np

from relbo.problem import Problem
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.findings import (
    Finding,
    UnconstrainedChains,
    findings_of_chains,
    findings_of_edges,
    findings_of_simplices,
    findings_of_tails,
)
from relbo.sampling.spaces import by_site


def findings_of_run(problem: Problem, chains: ChainDraws) -> list[Finding]:
    """Examines all draws of a run in unconstrained space."""
    return findings_of_chains(
        UnconstrainedChains(*chains[:4]), problem.coordinate_names(), _resolution()
    )


def findings_of_sites(
    problem: Problem, chains: ChainDraws, values: dict[str, np.ndarray]
) -> list[Finding]:
    """Examines the draws of the latent sites.

    Args:
        problem: the posterior.
        chains: the draws.
        values: the same draws by site, constrained, `[num_chains, draws, ...]`.
    """
    latent = {site.name: values[site.name] for site in problem.sites}
    unconstrained = by_site(problem, chains.draws)
    return [
        *findings_of_edges(latent, chains.logdensity.T),
        *findings_of_simplices(latent, unconstrained, _resolution()),
        *findings_of_tails(latent),
    ]


def findings_of_stop(is_stopped: bool) -> list[Finding]:
    """Notes that a callback ended the run."""
    return [Finding("The callback stopped the run.", is_fatal=False)] if is_stopped else []


def _resolution() -> float:
    return float(jnp.finfo(jnp.result_type(float)).eps)
