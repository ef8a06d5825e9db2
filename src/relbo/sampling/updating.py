"""Updates a posterior for new data, from its draws."""

import time
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from relbo._progress import Callback, Report, progress_bar, sticky
from relbo.core.checks import check_seconds
from relbo.core.random import KeyLike
from relbo.evaluate.importance import importance_estimate, log_mean_weight
from relbo.gaussian import WhiteningNormal, compiled_evaluate
from relbo.problem import Problem, read
from relbo.problem.call import Keywords
from relbo.sampling.chain_draws import ChainDraws, joined
from relbo.sampling.continuing import generator, precision_of
from relbo.sampling.diagnostics import effective_sample_size, rejected_in_tails
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.evidence import EvidenceIncrement
from relbo.sampling.findings import Finding, finding_of_necks
from relbo.sampling.independent import Proposals
from relbo.sampling.moving import OldDraws, best_map, effective_share, moved, resampled
from relbo.sampling.posterior import Posterior
from relbo.sampling.rounds import MAX_TRUSTED_REJECTED
from relbo.sampling.site_findings import findings_of_run, findings_of_sites, findings_of_stop
from relbo.sampling.spaces import constrain
from relbo.sampling.tempering import MAX_STAGES, Particles, tempered
from relbo.sampling.tuning import ChainTuning

PILOTS_PER_DIMENSION, MIN_PILOTS, MAX_PILOTS = 32, 512, 2048
"""Numbers of draws that find the map."""
MIN_SHARE = 0.4
"""The smallest share of effective draws for which weights alone are enough."""
MAX_PARETO_K = 0.7
"""Importance weights with a larger tail index are unreliable."""
NUM_WINDOWS = 1
"""Windows of the warm-up after the draws were annealed."""
NUM_PARTICLES = 256
"""Draws that are annealed."""
MIN_EFFECTIVE = 0.2
"""Chains run on if their draws are worth less than this share of independent ones."""


class UpdatedDraws(NamedTuple):
    """Draws of the new posterior, and how they were made."""

    chains: ChainDraws
    sample_stats: dict[str, np.ndarray]
    tuning: ChainTuning | None
    increment: EvidenceIncrement
    procedure: str
    is_stopped: bool = False


class Update(NamedTuple):
    """What an update starts from."""

    rng: np.random.Generator
    posterior: Posterior
    old: Problem
    new: Problem
    draws: OldDraws
    num_chains: int
    report: Report
    deadline: float

    @property
    def length(self) -> int:
        return len(self.draws.white) // self.num_chains

    @property
    def log_step(self) -> float:
        tuning = self.posterior.tuning
        return float(np.log(0.9 * self.old.size**-0.25)) if tuning is None else tuning.log_step


def updated(
    posterior: Posterior,
    args: tuple,
    kwargs: Keywords,
    *,
    model: Any,
    key: KeyLike | None,
    seconds: float | None,
    progress: bool,
    callback: Callback | None,
) -> Posterior:
    """Returns the posterior for new data; see `Posterior.update`."""
    started, old = time.monotonic(), posterior.problem
    check_seconds(seconds)
    if old is None:
        raise ValueError(
            "update: a loaded posterior has no model; load it with "
            "Posterior.load(path, model, args), with the old data"
        )
    with precision_of(posterior), progress_bar(progress, sticky(callback)) as report:
        new = _read_new(old, args, kwargs, model)
        update = Update(
            generator(posterior, key),
            posterior,
            old,
            new,
            OldDraws.of(posterior, old),
            len(posterior.sample_stats["lp"]),
            report,
            np.inf if seconds is None else started + seconds,
        )
        found = _run(update)
        values = constrain(new, found.chains.draws)
        findings = [
            *_findings_of_old(posterior),
            *findings_of_run(new, found.chains),
            *findings_of_sites(new, found.chains, values),
            *_findings_of_necks(found.chains),
            *findings_of_stop(found.is_stopped),
        ]
        report("update", 1.0)
    weights = posterior.log_weights
    return Posterior(
        values,
        num_draws=min(posterior.num_draws, found.chains.logdensity.size),
        sample_stats=found.sample_stats,
        num_superchains=found.chains.num_superchains,
        step_size=found.chains.step_size,
        log_weights=None if weights is None else weights.shifted(found.increment.value),
        findings=findings,
        seconds={"update": time.monotonic() - started},
        problem=new,
        procedure=found.procedure,
        tuning=found.tuning,
        increment=found.increment.after(posterior.increment),
    )


def _read_new(old: Problem, args: tuple, kwargs: Keywords, model: Any) -> Problem:
    params = getattr(old.data, "params", None)
    new = read(old.program.model if model is None else model, args, kwargs, params=params)
    if old.sites != new.sites:
        described = [", ".join(f"{n}{list(s)}" for n, s in one.sites) for one in (old, new)]
        raise ValueError(
            f"args: expected a model with the latent sites {described[0]}, got "
            f"{described[1]}: draws of other sites cannot be updated; use relbo.infer"
        )
    return new


def _run(update: Update) -> UpdatedDraws:
    """Moves and weighs the draws; if too few are effective, chains run from annealed ones."""
    number, size = update.draws.white.shape
    wanted = int(np.clip(PILOTS_PER_DIMENSION * size, MIN_PILOTS, MAX_PILOTS))
    batch_size = min(number, max(wanted, update.num_chains))
    evaluate = compiled_evaluate(update.new, batch_size)
    order = update.rng.permutation(number)
    normal, first = best_map(update.draws.at(order[:batch_size]), evaluate, batch_size)
    # The map fits the pilots too well: others estimate the evidence.
    others = order[batch_size:] if number >= 2 * batch_size else order
    update.report("update", 0.3)
    if effective_share(first.log_weights) >= MIN_SHARE:
        proposals = moved(update.draws, normal, evaluate, batch_size)
        share, pareto_k = _quality(proposals.log_weights)
        if share >= MIN_SHARE and pareto_k <= MAX_PARETO_K:
            return _weighed(update, normal, proposals, others)
    particles = update.draws.at(others[: max(NUM_PARTICLES, update.num_chains)])
    return _annealed(update, normal, particles, moved(particles, normal, evaluate, batch_size))


def _quality(log_weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Returns the share of effective draws, and Pareto k."""
    share = effective_share(log_weights)
    pareto_k = importance_estimate(log_weights).pareto_k if share > 0 else None
    return share, np.inf if pareto_k is None else pareto_k


def _weighed(
    update: Update,
    normal: WhiteningNormal,
    proposals: Proposals,
    others: Int[np.ndarray, " m"],
) -> UpdatedDraws:
    """Repeats the moved draws in proportion to their weights.

    The order of the chains is kept, so that repeated draws are neighbours: the effective sample
    size counts them as one, and R-hat still compares the chains.
    """
    kept = resampled(update.rng, proposals.log_weights)
    shape = (update.num_chains, update.length)
    by_draw = lambda part: np.swapaxes(part[kept].reshape(*shape, *part.shape[1:]), 0, 1)
    points, score, logdensity = (by_draw(part) for part in proposals[:3])
    ones = np.ones(logdensity.shape)
    chains = ChainDraws(
        points,
        score,
        logdensity,
        ones,
        np.full(ones.shape, np.nan),
        np.zeros(ones.shape, bool),
        np.zeros(ones.shape, int),
        float(np.exp(update.log_step)),
        update.posterior.num_superchains,
    )
    tuning = update.posterior.tuning
    if tuning is not None:
        tuning = tuning._replace(normal=normal, ends=points[-1], spacing=1.0)
    share, pareto_k = _quality(proposals.log_weights)
    how = (
        "Draws of another posterior were moved by an affine map and repeated in proportion to "
        f"their importance weights ({share:.0%} of them are effective, Pareto k "
        f"{pareto_k:.2f}). Other modes were not looked for."
    )
    # Nothing else is known of draws that no chain visited.
    stats = {"lp": chains.logdensity.T}
    increment = _increment(proposals.log_weights, shape, others)
    return UpdatedDraws(chains, stats, tuning, increment, how)


def _increment(
    log_weights: Float[np.ndarray, " n"],
    shape: tuple[int, int],
    others: Int[np.ndarray, " m"],
) -> EvidenceIncrement:
    """Estimates the ratio of the evidences, with an error from the differences of chains."""
    value, stderr = log_mean_weight(log_weights[others])
    by_chain = np.exp(log_weights - value).reshape(shape).mean(1)
    between = float(by_chain.std(ddof=1) / len(by_chain) ** 0.5)
    return EvidenceIncrement(value, max(stderr, between))


def _annealed(
    update: Update, normal: WhiteningNormal, start: OldDraws, first: Proposals
) -> UpdatedDraws:
    """Anneals some draws to the new posterior, and runs chains from there."""
    if effective_share(first.log_weights) == 0.0:
        raise _collapsed(first, 0.0)
    particles = tempered(
        update.rng,
        (update.old, update.new),
        start,
        normal,
        float(np.exp(update.log_step)),
        update.report,
    )
    if particles.fraction < 1.0:
        raise _collapsed(first, particles.fraction)
    ensemble = _started(update, normal, particles)
    ensemble.warm_up(NUM_WINDOWS)
    chains = _sampled(ensemble, update.length)
    tuning = ensemble.tuning()
    if tuning is not None:
        tuning = tuning._replace(spacing=chains.spacing)
    how = (
        f"Draws of another posterior were annealed in {particles.num_stages} steps, and "
        "Metropolis-adjusted chains started from them. Other modes were not looked for."
    )
    increment = EvidenceIncrement(particles.log_ratio, particles.stderr)
    return UpdatedDraws(
        chains, chains.sample_stats(), tuning, increment, how, ensemble.is_stopped
    )


def _collapsed(first: Proposals, fraction: float) -> ValueError:
    share, pareto_k = _quality(first.log_weights)
    return ValueError(
        "args: the new posterior is too different from the old one: the weights of its draws "
        f"collapse ({share:.1%} of them are effective, Pareto k {pareto_k:.2f}), and "
        f"{MAX_STAGES} annealed steps came only {fraction:.0%} of the way. Give the new data "
        "in smaller portions, or run relbo.infer(key, model, args, start=posterior)"
    )


def _started(update: Update, normal: WhiteningNormal, particles: Particles) -> Ensemble:
    """Starts every chain in a particle of its own."""
    ensemble = Ensemble(
        update.rng,
        update.new,
        update.num_chains,
        report=update.report,
        deadline=update.deadline,
    )
    tuning = update.posterior.tuning or ensemble.tuning()
    assert tuning is not None
    chosen = update.rng.permutation(len(particles.white))[: update.num_chains]
    ends = normal.push(particles.white[chosen])
    ensemble.resume(tuning._replace(normal=normal, ends=ends))
    return ensemble


def _sampled(ensemble: Ensemble, length: int) -> ChainDraws:
    """Samples, and goes on if the draws depend too much on each other."""
    chains = ensemble.sample(length)
    share = _effective(chains) / chains.logdensity.size
    if share < MIN_EFFECTIVE and not ensemble.is_late():
        factor = min(MIN_EFFECTIVE / max(share, 0.1), 3.0)
        more = ensemble.sample(int(np.ceil(factor * length)) - length)
        chains = joined(chains, more).thinned(length)
    return chains


def _rejected(chains: ChainDraws) -> float:
    """Returns the share of rejected steps in the narrowest place."""
    by_chain = np.swapaxes(chains.draws, 0, 1)
    return float(np.max(rejected_in_tails(by_chain, chains.acceptance.T)))


def _effective(chains: ChainDraws) -> float:
    """Returns the smallest effective number of draws of a coordinate."""
    by_chain = np.swapaxes(chains.draws, 0, 1)
    return float(np.nanmin(effective_sample_size(by_chain), initial=np.inf))


def _findings_of_necks(chains: ChainDraws) -> list[Finding]:
    rejected = _rejected(chains)
    return [finding_of_necks(rejected)] if rejected > MAX_TRUSTED_REJECTED else []


def _findings_of_old(posterior: Posterior) -> list[Finding]:
    check = posterior.check()
    if check.trustworthy:
        return []
    reason = next(iter(check.advice), f"R-hat {check.rhat:.3f}")
    return [Finding(f"The posterior that was updated was not to be trusted: {reason}")]
