"""Continues a posterior: more draws of its chains, or chains of another run from its draws."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from relbo._devices import spread_over
from relbo._progress import Callback, progress_bar
from relbo.core.checks import check_integer, check_seconds
from relbo.core.fingerprint import digest
from relbo.core.random import KeyLike, as_key
from relbo.gaussian import DENSE_LIMIT, WhiteningNormal, normal_of_draws
from relbo.problem import Problem
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.findings import Finding
from relbo.sampling.posterior import Posterior
from relbo.sampling.rounds import PhaseClock
from relbo.sampling.site_findings import findings_of_run, findings_of_sites, findings_of_stop
from relbo.sampling.spaces import constrain, seed_words, unconstrained_rows

MIN_EXAMINED = 16
"""Fewer draws of each chain are too few to examine."""


def extended(
    posterior: Posterior,
    num_draws: int,
    *,
    key: KeyLike | None,
    seconds: float | None,
    mesh: Mesh | None,
    progress: bool,
    callback: Callback | None,
) -> Posterior:
    """Returns a posterior with more draws of the same chains; see `Posterior.extend`."""
    check_integer("num_draws", num_draws, 1)
    check_seconds(seconds)
    problem, tuning = posterior.problem, posterior.tuning
    if problem is None:
        raise ValueError(
            "extend: a loaded posterior has no model; load it with "
            "Posterior.load(path, model, args)"
        )
    if tuning is None:
        raise ValueError(
            "extend: the posterior does not say how its chains go on. If they were of several "
            "modes, run relbo.infer with more num_draws; if they were of a given kernel, "
            "relbo.sample(key, model, args, kernel=kernel, start=posterior); if they were of a "
            "guide, or some were left out, relbo.infer(key, model, args, start=posterior)"
        )
    started = time.monotonic()
    with precision_of(posterior), progress_bar(progress, callback) as report:
        num_chains = len(tuning.ends)
        ensemble = Ensemble(
            generator(posterior, key),
            problem,
            num_chains,
            report=report,
            deadline=np.inf if seconds is None else started + seconds,
            spread=spread_over(mesh),
        )
        clock = PhaseClock(started)
        ensemble.resume(tuning)
        length = -(-num_draws // num_chains)
        run = ensemble.sample(int(np.ceil(length * tuning.spacing)))
        clock.lap("sample")
        # A run that ended early keeps the distance of its draws.
        more = run.thinned(min(length, max(1, int(len(run.draws) / tuning.spacing))))
        values = constrain(problem, more.draws)
        findings = _findings_of_run(problem, run, more, values)
        findings += findings_of_stop(ensemble.is_stopped)
        clock.lap("constrain")
        ends = ensemble.tuning()
    assert ends is not None
    return _joined(
        posterior,
        more,
        values,
        num_draws=num_draws,
        findings=findings,
        seconds=clock.laps,
        tuning=ends._replace(spacing=tuning.spacing),
    )


def _joined(
    posterior: Posterior,
    more: ChainDraws,
    values: dict[str, np.ndarray],
    *,
    num_draws: int,
    findings: list[Finding],
    seconds: dict[str, float],
    **changes: Any,
) -> Posterior:
    """Makes every chain longer by its new draws."""
    chains = {n: np.concatenate([v, values[n]], 1) for n, v in posterior.chains.items()}
    new_stats = more.sample_stats()
    stats = {
        n: np.concatenate([v, new_stats[n].astype(v.dtype)], 1)
        for n, v in posterior.sample_stats.items()
    }
    old = posterior.findings
    seen = {finding.text for finding in old}
    total = {name: posterior.seconds.get(name, 0.0) + value for name, value in seconds.items()}
    return posterior.replaced(
        chains=chains,
        sample_stats=stats,
        num_draws=min(posterior.num_draws + num_draws, stats["lp"].size),
        findings=(*old, *(finding for finding in findings if finding.text not in seen)),
        seconds=posterior.seconds | total,
        **changes,
    )


def _findings_of_run(
    problem: Problem, run: ChainDraws, kept: ChainDraws, values: dict[str, np.ndarray]
) -> list[Finding]:
    if len(run.draws) < MIN_EXAMINED:
        return []
    return [
        *findings_of_run(problem, run),
        *findings_of_sites(problem, kept, values),
    ]


def start_from(ensemble: Ensemble, posterior: Posterior) -> list[Finding]:
    """Starts chains in draws of a posterior, with the coordinates that it was sampled in."""
    points = draws_for(posterior, ensemble.problem, "start")
    points = points.reshape(-1, points.shape[2])
    if posterior.tuning is not None:
        method = ensemble.method
        ensemble.resume(posterior.tuning)
        ensemble.method = method
    else:
        ensemble.normal = normal_near(points)
    chosen = ensemble.rng.choice(len(points), ensemble.num_superchains, replace=False)
    ensemble.disperse(points[chosen])
    text = "The chains started from another posterior: other modes were not looked for."
    return [Finding(text, is_fatal=False)]


def draws_for(
    posterior: Posterior, problem: Problem, argument: str
) -> Float[np.ndarray, "draws chains d"]:
    """Returns the draws in the unconstrained space of a problem with the same sites."""
    chains = posterior.chains
    missing = [site.name for site in problem.sites if site.name not in chains]
    if missing:
        raise ValueError(
            f"{argument}: the posterior has no draws of the sites {missing} of the model; "
            "infer it without them"
        )
    shape = posterior.sample_stats["lp"].shape
    latent = {
        site.name: chains[site.name].reshape(-1, *chains[site.name].shape[2:])
        for site in problem.sites
    }
    try:
        rows = np.asarray(unconstrained_rows(problem, latent), float)
    except (TypeError, ValueError) as error:
        shapes = {site.name: site.shape for site in problem.sites}
        raise ValueError(
            f"{argument}: the draws do not fit the sites of the model, {shapes} ({error}); "
            "infer it without them"
        ) from error
    if rows.shape != (shape[0] * shape[1], problem.size):
        raise ValueError(
            f"{argument}: the posterior has sites of other shapes than the model; infer it "
            "without it"
        )
    if not np.all(np.isfinite(rows)):
        raise ValueError(
            f"{argument}: some draws are rounded to the edge of their support, and cannot be "
            "continued; infer in float64 (numpyro.enable_x64())"
        )
    return np.swapaxes(rows.reshape(*shape, problem.size), 0, 1)


def normal_near(points: Float[np.ndarray, "n d"]) -> WhiteningNormal:
    """Returns a normal with the moments of draws."""
    size = points.shape[1]
    identity = np.eye(size) if size <= DENSE_LIMIT else np.ones(size)
    # Standardised first: scales may differ by many orders of magnitude.
    loc, scale = points.mean(0), points.std(0) + 1e-12
    standard = WhiteningNormal(np.zeros(size), identity)
    rough, _ = normal_of_draws(standard, (points - loc) / scale)
    return rough.rescaled(loc, scale)


def generator(posterior: Posterior, key: KeyLike | None) -> np.random.Generator:
    """Returns the source of noise: of a key, or another one for every posterior."""
    if key is not None:
        return np.random.default_rng(seed_words(as_key(key)))
    return np.random.default_rng(int(digest(posterior.sample_stats["lp"]), 16))


@contextlib.contextmanager
def precision_of(posterior: Posterior) -> Iterator[None]:
    """Computes in the precision in which a posterior was sampled."""
    is_double = any(values.dtype == np.float64 for values in posterior.chains.values())
    if is_double == bool(jax.config.read("jax_enable_x64")):
        yield
        return
    with double_precision(is_double):
        yield


@contextlib.contextmanager
def double_precision(enabled: bool = True) -> Iterator[None]:
    """Computes in float64, or without it, for a while."""
    # JAX keeps constants that a model closes over, and would use them in the other precision.
    jax.clear_caches()
    with jax.enable_x64(enabled):
        try:
            yield
        finally:
            jax.clear_caches()
