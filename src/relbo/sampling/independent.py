"""Independent Metropolis steps: a guide proposes, and the posterior accepts or rejects."""

import time
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from relbo._devices import is_past, local, spread_over
from relbo._progress import Callback, progress_bar
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.batches import map_with_keys
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem import Problem
from relbo.problem.numpyro import log_abs_det, substituted
from relbo.problem.traces import run
from relbo.sampling.chain_draws import default_num_superchains
from relbo.sampling.evidence import LogWeights
from relbo.sampling.findings import (
    Finding,
    UnconstrainedChains,
    findings_of_chains,
    findings_of_edges,
    findings_of_tails,
)
from relbo.sampling.posterior import Posterior
from relbo.sampling.spaces import constrain, seed_words

MIN_LENGTH = 8
"""Proposals for each chain, whatever the time budget."""
PROPOSING_SHARE = 0.85
"""The share of the time budget after which no more proposals are made."""
PILOTS_PER_DIMENSION, MIN_PILOTS, MAX_PILOTS = 8, 256, 1600
"""Numbers of first proposals, whose scores correct the guide."""
MAX_CORRECTIONS = 4
MAX_PARETO_K = 0.7
"""Importance weights with a larger tail index are unreliable."""


class Proposals(NamedTuple):
    """Draws of a guide in unconstrained space."""

    points: Float[np.ndarray, "*n d"]
    score: Float[np.ndarray, "*n d"]
    logdensity: Float[np.ndarray, "*n"]
    log_weights: Float[np.ndarray, "*n"]
    """log p(x, z) - log q(z); of a refined guide, those of whole paths."""


class AffineMap(NamedTuple):
    """Maps z to `factor @ z + shift`."""

    factor: Float[np.ndarray, "d d"] | Float[Array, "d d"]
    shift: Float[np.ndarray, " d"] | Float[Array, " d"]

    @classmethod
    def identity(cls, size: int) -> "AffineMap":
        dtype = np.dtype(jnp.result_type(float))
        return cls(np.eye(size, dtype=dtype), np.zeros(size, dtype))

    def apply(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        return jnp.asarray(self.factor @ point + self.shift)

    @property
    def log_abs_det(self) -> Scalar:
        return jnp.linalg.slogdet(self.factor)[1]

    def then(self, factor: np.ndarray, shift: np.ndarray) -> "AffineMap":
        """Returns this map followed by another one."""
        both = (factor @ self.factor, factor @ self.shift + shift)
        return AffineMap(*(part.astype(self.shift.dtype) for part in both))


def sample_independently(
    key: KeyLike,
    problem: Problem,
    guide: Any,
    params: dict[str, PyTree],
    *,
    num_draws: int,
    num_chains: int,
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Posterior:
    """Samples a posterior with proposals that are independent draws of a guide.

    A proposal with weight w replaces a draw with weight w' with probability min(1, w / w').
    The chains sample the posterior exactly, at one gradient per draw: far fewer than
    Hamiltonian chains take, but the guide has to fit well. The weights show whether it does.

    Args:
        key: a random key, or an integer seed.
        problem: the posterior.
        guide: a trained guide.
        params: its parameters.
        num_draws: number of draws to return; fewer if the time is up.
        num_chains: number of chains.
        seconds: time budget in seconds; at least 8 proposals are made for each chain.
        mesh: the devices that share them.
        progress: whether to show a progress bar.
        callback: called after each round of proposals; returning `True` ends them.

    Returns:
        A `Posterior`.
    """
    started = time.monotonic()
    deadline = np.inf if seconds is None else started + PROPOSING_SHARE * seconds
    typed_key, spread = as_key(key), spread_over(mesh)
    if isinstance(guide, AbstractRefinedGuide):
        guide = guide.at_full_size()

    def propose(key: PRNGKeyArray, change: AffineMap) -> Proposals:
        function = eqx.Partial(_propose, problem, params, guide, change)
        with warnings.catch_warnings():
            # All local values are drawn, whatever size of minibatch the model names.
            warnings.filterwarnings("ignore", "subsample_size does not match")
            made = map_with_keys(key, function, num_chains, batch_size=1, mesh=mesh)
        return Proposals(*(np.asarray(part, float) for part in local(spread, made)))

    with progress_bar(progress, callback) as report:
        pilot_key, main_key = jr.split(typed_key)
        change = AffineMap.identity(problem.size)
        num_pilots = np.clip(PILOTS_PER_DIMENSION * problem.size, MIN_PILOTS, MAX_PILOTS)
        num_rounds = -(-int(num_pilots) // num_chains)
        for turn in range(MAX_CORRECTIONS):
            keys = jr.split(jr.fold_in(pilot_key, turn), num_rounds)
            pilots = _joined([propose(key, change) for key in keys])
            change, is_small = corrected(change, pilots)
            if is_small or is_past(spread, deadline):
                break
        length, rounds = max(-(-num_draws // num_chains), MIN_LENGTH), []
        # The first round is for where the chains start.
        for turn, round_key in enumerate(jr.split(main_key, length + 1)):
            is_stopped = report("propose", turn / length)
            rounds.append(propose(round_key, change))
            if turn >= MIN_LENGTH and (is_stopped or is_past(spread, deadline)):
                break
        report("propose", 1.0)
    rng = np.random.default_rng(seed_words(typed_key))
    posterior = _accepted(rng, problem, _joined(rounds), num_chains, num_draws)
    posterior.findings = (*_findings_of_guide(guide, posterior), *posterior.findings)
    posterior.seconds = {"propose": time.monotonic() - started}
    return posterior


def _accepted(
    rng: np.random.Generator,
    problem: Problem,
    proposals: Proposals,
    num_chains: int,
    num_draws: int,
) -> Posterior:
    visited, acceptance = metropolis(rng, proposals.log_weights.reshape(-1, num_chains))
    kept = Proposals(*(part[visited] for part in proposals))
    chains = UnconstrainedChains(*kept[:3], acceptance)
    values = constrain(problem, chains.draws)
    latent = {site.name: values[site.name] for site in problem.sites}
    resolution = float(jnp.finfo(jnp.result_type(float)).eps)
    return Posterior(
        values,
        num_draws=min(num_draws, visited.size),
        sample_stats={"lp": chains.logdensity.T, "acceptance_rate": acceptance.T},
        num_superchains=default_num_superchains(num_chains),
        step_size=None,
        # What the chains visit are draws of the same paths, given that they end there.
        log_weights=LogWeights(proposals.log_weights, kept.log_weights.ravel()),
        findings=[
            *findings_of_chains(chains, problem.coordinate_names(), resolution),
            *findings_of_edges(latent, chains.logdensity.T),
            *findings_of_tails(latent),
        ],
        problem=problem,
        procedure="The guide proposed draws, and independent Metropolis steps accepted or "
        "rejected them. Other modes were not looked for.",
    )


def metropolis(
    rng: np.random.Generator, log_weights: Float[np.ndarray, "rounds chains"]
) -> tuple[Int[np.ndarray, "draws chains"], Float[np.ndarray, "draws chains"]]:
    """Accepts or rejects proposals.

    Args:
        rng: the source of all noise.
        log_weights: log weights of the proposals. The chains start from the first round.

    Returns:
        The flat index of the proposal that each chain is at, after every further round, and
        the probabilities with which the proposals were accepted.
    """
    num_chains = log_weights.shape[1]
    # A proposal whose weight is not a number is never accepted.
    flat = np.where(np.isnan(log_weights), -np.inf, log_weights).ravel()
    first = flat[:num_chains]
    if not np.isfinite(first.max()):
        raise ValueError("guide: its draws have no density in the model; train it again")
    weights = np.exp(first - first.max())
    current = rng.choice(num_chains, num_chains, p=weights / weights.sum())
    visited, acceptance = [], []
    for start in range(num_chains, flat.size, num_chains):
        proposed = np.arange(start, start + num_chains)
        rate = np.exp(np.minimum(0.0, flat[proposed] - flat[current]))
        current = np.where(rng.uniform(size=num_chains) < rate, proposed, current)
        visited.append(current)
        acceptance.append(rate)
    return np.stack(visited), np.stack(acceptance)


def _propose(
    problem: Problem,
    params: dict[str, PyTree],
    guide: Any,
    change: "AffineMap",
    key: PRNGKeyArray,
) -> tuple[Array, Array, Array, Array]:
    """Draws from the guide, moves the draw and weighs it by the posterior."""
    with substituted(key, params):
        trace = run(guide, problem.call)
    values = {site.name: trace[site.name]["value"] for site in problem.sites}
    given = {**problem.data.params, **values}
    log_q = _log_q(trace) + log_abs_det(problem.program.model, problem.call, given)
    point = change.apply(problem.unconstrain(values))
    logdensity, score = jax.value_and_grad(problem.logdensity)(point)
    return point, score, logdensity, logdensity - log_q + change.log_abs_det


def corrected(change: AffineMap, pilots: Proposals) -> tuple[AffineMap, bool]:
    """Moves proposals to where the posterior is, and makes them as wide.

    Training on minibatches leaves errors in the mean and the scales. The score of a normal
    posterior is a linear function of the draw, whose coefficients are its mean and precision.

    Returns:
        The new map, and whether it hardly differs.
    """
    fine = np.isfinite(pilots.score).all(1)
    points, score = pilots.points[fine], pilots.score[fine]
    number, size = points.shape
    if number < PILOTS_PER_DIMENSION * size:
        return change, True
    mean, centred = points.mean(0), points - points.mean(0)
    covariance = centred.T @ centred / number
    slopes = np.linalg.lstsq(centred, score - score.mean(0))[0]
    precision = -0.5 * (slopes + slopes.T)
    if np.linalg.eigvalsh(precision)[0] <= 0:
        return change, True
    posterior = np.linalg.inv(precision)
    step = posterior @ score.mean(0)
    by = np.linalg.cholesky(posterior) @ np.linalg.inv(np.linalg.cholesky(covariance))
    is_small = np.all(np.abs(step) < 0.2 * np.sqrt(np.diagonal(posterior)))
    return change.then(by, mean + step - by @ mean), bool(is_small)


def _joined(rounds: list[Proposals]) -> Proposals:
    return Proposals(*map(np.concatenate, zip(*rounds, strict=True)))


def _log_q(trace: dict[str, dict[str, Any]]) -> Scalar:
    terms = [
        jnp.sum(site["fn"].log_prob(site["value"])) * (site["scale"] or 1.0)
        for site in trace.values()
        if site["type"] == "sample"
    ]
    return jnp.sum(jnp.stack(terms))


def _findings_of_guide(guide: Any, posterior: Posterior) -> list[Finding]:
    if isinstance(guide, AbstractRefinedGuide) and guide.bound.valid is not True:
        reason = f"The weights of the guide's draws are not valid: {guide.bound.reason}"
        return [Finding(f"{reason.rstrip('.')}. Use relbo.AutoRefined(model).")]
    pareto_k = posterior.pareto_k
    if pareto_k is None or pareto_k <= MAX_PARETO_K:
        return []
    return [
        Finding(
            f"The guide is too far from the posterior to propose draws (Pareto k "
            f"{pareto_k:.2f}). Give more seconds, so that it is trained longer or chains can "
            "run on all the data, or use a richer guide."
        )
    ]
