"""Samples a posterior with many chains, from a model or a trained guide."""

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, PRNGKeyArray, PyTree

from relbo._devices import spread_over
from relbo._progress import Callback, progress_bar
from relbo.core.checks import check_choice, check_integer, check_seconds
from relbo.core.random import KeyLike, as_key
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem import Problem, read
from relbo.problem.call import Call, Keywords, checked_call
from relbo.sampling.continuing import normal_near, start_from
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.findings import Finding
from relbo.sampling.given_kernel import free_parameters, run_given_kernel
from relbo.sampling.posterior import Posterior
from relbo.sampling.rounds import PhaseClock, run_chains
from relbo.sampling.site_findings import findings_of_sites, findings_of_stop
from relbo.sampling.spaces import (
    constrain,
    logdensity_rows,
    seed_words,
    unconstrained_rows,
)

SamplingMethod = Literal["hmc", "mala", "unadjusted"]

SAMPLING_SHARE = 0.85
"""The share of the time budget after which no more draws are started."""
MANY_LATENTS = 1000
"""Beyond this number there are fewer chains."""


def sample(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    guide: Any = None,
    params: dict[str, PyTree] | None = None,
    start: Posterior | None = None,
    method: SamplingMethod = "hmc",
    kernel: Callable[..., Any] | None = None,
    num_draws: int = 4000,
    num_chains: int | None = None,
    num_evidence_draws: int = 0,
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Posterior:
    """Draws from a posterior with many chains.

    The chains are Metropolis-adjusted and run in whitened coordinates, unless another method is
    chosen. They start from draws of a guide and are whitened by its covariance; a short warm-up
    adapts the covariance and the step size. After that everything is fixed, and the chains
    sample the posterior exactly. If the effective number of draws is too small or the chains
    have not converged, they run longer.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program, a model made by `model_from_logdensity`, or a `Problem`.
        args, kwargs: its arguments.
        guide: a trained guide to start from; by default a normal is fitted first.
        params: the guide's parameters.
        start: a posterior of the same sites to start from instead, such as one for other data:
            the chains start in its draws and in the coordinates that it was sampled in.
        method: `"hmc"`; `"mala"`, which takes one leapfrog per draw; or `"unadjusted"`, which
            runs the sampler that a refined guide has learned: nothing is adapted, accepted or
            rejected, and the draws have the bias of its step size. It keeps a draw every T
            steps.
        kernel: a kernel of BlackJAX that runs after the warm-up in place of `method`, such as
            `blackjax.nuts`, in the whitened coordinates of the fit. It is called with a log
            density, a tuned `step_size` and the identity as `inverse_mass_matrix` where it
            has these parameters without a value; others are given with `functools.partial`. It
            runs for `num_draws / num_chains` iterations on one device, and no longer if that
            is too short: see `Posterior.check`.
        num_draws: number of draws to return.
        num_chains: number of chains; by default about 64, a divisor of `num_draws`.
        num_evidence_draws: number of annealed draws of the normal to weigh, for the evidence.
        seconds: time budget in seconds.
        mesh: the devices that share the chains; all by default, as for `relbo.fit`.
            `"unadjusted"` uses one.
        progress: whether to show a progress bar.
        callback: called with a `RunState` after each chunk of iterations; the run ends if it
            returns `True`, as if the time were up. It is not called while an unadjusted
            sampler runs. Several processes have to decide alike.

    Returns:
        A `Posterior`.
    """
    started = time.monotonic()
    key = as_key(key)
    check_sample_options(method, num_draws, num_chains, seconds)
    check_integer("num_evidence_draws", num_evidence_draws, 0)
    check_start(start, guide, method)
    if kernel is not None:
        free_parameters(kernel)  # raises, before the fit
    problem = read(model, args, kwargs, params=params)
    if num_chains is None:
        num_chains = default_num_chains(num_draws, problem.size)
    source = _GuideSource(guide, params or {}, checked_call(args, kwargs))
    if method == "unadjusted":
        return _sample_unadjusted(key, problem, source, num_draws, num_chains)
    # The rest is for the evidence and for examining the draws.
    deadline = np.inf if seconds is None else started + SAMPLING_SHARE * seconds
    with progress_bar(progress, callback) as report:
        ensemble = Ensemble(
            np.random.default_rng(seed_words(key)),
            problem,
            num_chains,
            method=method,
            report=report,
            deadline=deadline,
            end=np.inf if seconds is None else started + seconds,
            spread=spread_over(mesh),
        )
        clock = PhaseClock(started)
        findings = (
            _begin(ensemble, key, source) if start is None else start_from(ensemble, start)
        )
        clock.lap("fit")
        numbers = (num_draws, num_evidence_draws, clock)
        if kernel is None:
            run = run_chains(ensemble, *numbers)
        else:
            run = run_given_kernel(jr.fold_in(key, 1), ensemble, kernel, *numbers)
        chains, log_weights = run.chains, run.log_weights
        tuning = ensemble.tuning() if kernel is None else None
        if tuning is not None:
            tuning = tuning._replace(spacing=chains.spacing)
        findings += run.findings
        findings += findings_of_stop(ensemble.is_stopped)
        values = constrain(problem, chains.draws)
        findings += findings_of_sites(problem, chains, values)
        clock.lap("constrain")
    return Posterior(
        values,
        num_draws=min(num_draws, chains.logdensity.size),
        sample_stats=chains.sample_stats(),
        num_superchains=chains.num_superchains,
        step_size=chains.step_size,
        log_weights=log_weights,
        findings=findings,
        seconds=clock.laps,
        problem=problem,
        procedure=(
            f"Metropolis-adjusted chains ({method})"
            if kernel is None
            else "Chains of the given kernel, in whitened coordinates,"
        )
        + f" started from {_origin(guide, start)}.",
        tuning=tuning,
    )


def _origin(guide: Any, start: Posterior | None) -> str:
    if start is not None:
        return "draws of another posterior"
    return "a fitted normal" if guide is None else "draws of the guide"


class _GuideSource(NamedTuple):
    """A trained guide with what its draws need."""

    guide: Any
    params: dict[str, PyTree]
    call: Call


def _sample_unadjusted(
    key: PRNGKeyArray, problem: Problem, source: _GuideSource, num_draws: int, num_chains: int
) -> Posterior:
    """Runs the learned sampler on."""
    guide, params, call = source
    if not isinstance(guide, AbstractRefinedGuide):
        raise ValueError(
            'method: "unadjusted" runs the sampler inside a refined guide; pass '
            "guide=relbo.AutoRefined(model), trained with relbo.fit, and its params"
        )
    clock = PhaseClock(time.monotonic())
    values = guide.sample_chains(
        key,
        params,
        *call.args,
        num_chains=num_chains,
        num_draws=-(-num_draws // num_chains),
        **call.kwargs,
    )
    # Through the unconstrained space, for the deterministic sites and the log density.
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in values.items()}
    points = np.asarray(unconstrained_rows(problem, flat)).reshape(num_chains, -1, problem.size)
    chains = constrain(problem, np.swapaxes(points, 0, 1))
    lp = logdensity_rows(problem, points.reshape(-1, problem.size)).reshape(num_chains, -1)
    clock.lap("sample")
    return Posterior(
        chains,
        num_draws=num_draws,
        sample_stats={"lp": np.asarray(lp)},
        num_superchains=num_chains,
        step_size=None,
        seconds=clock.laps,
        problem=problem,
        procedure="The sampler inside the guide ran on, without Metropolis tests.",
    )


def _begin(ensemble: Ensemble, key: PRNGKeyArray, source: _GuideSource) -> list[Finding]:
    """Fits a normal and starts the chains; returns what was noticed."""
    if source.guide is None:
        start = ensemble.problem.start
        converged = ensemble.fit(None if start is None else np.asarray(start, float))
        ensemble.disperse()
        if converged:
            return []
        text = "The posterior is far from normal: the fit of a normal did not converge."
        return [Finding(text, is_fatal=False)]
    points = _guide_draws(ensemble, key, source)
    ensemble.normal = normal_near(points)
    ensemble.disperse(points)
    text = "The chains started from a guide: other modes were not looked for."
    return [Finding(text, is_fatal=False)]


def _guide_draws(
    ensemble: Ensemble, key: PRNGKeyArray, source: _GuideSource
) -> Float[np.ndarray, "n d"]:
    """Draws from a guide, in the unconstrained space of the problem."""
    guide, params, call = source
    number = max(512, 4 * ensemble.problem.size)
    values = guide.sample_posterior(
        key, params, *call.args, sample_shape=(number,), **call.kwargs
    )
    names = [site.name for site in ensemble.problem.sites]
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"guide: it has no draws of the model's sites {missing}")
    points = unconstrained_rows(ensemble.problem, {name: values[name] for name in names})
    points = np.asarray(points, float)
    finite = np.all(np.isfinite(points), 1)
    if finite.sum() < ensemble.num_superchains:
        raise ValueError("guide: hardly any of its draws is finite; train it again")
    return points[finite]


def check_sample_options(
    method: str, num_draws: int, num_chains: int | None, seconds: float | None
) -> None:
    """Raises `ValueError` unless the options of `sample` are as its documentation says."""
    check_choice("method", method, get_args(SamplingMethod))
    check_integer("num_draws", num_draws, 1)
    check_seconds(seconds)
    if num_chains is not None:
        check_integer("num_chains", num_chains, 4)
        if num_chains % 2:
            raise ValueError(f"num_chains: expected an even number, got {num_chains}")


def check_start(start: Any, guide: Any, method: str) -> None:
    """Raises `ValueError` unless chains can start from a posterior, if there is one."""
    if start is None:
        return
    if not isinstance(start, Posterior):
        raise ValueError(f"start: expected a Posterior, got {type(start).__name__}")
    if guide is not None:
        raise ValueError("start: expected a guide or a posterior to start from, got both")
    if method == "unadjusted":
        raise ValueError('start: method="unadjusted" starts from its guide; leave it out')


def default_num_chains(num_draws: int, size: int) -> int:
    """Returns an even divisor of the number of draws near 64, so that no draw is wasted.

    Of very many latents near 32: then many chains take no less time than long ones.
    """
    wanted = 64 if size <= MANY_LATENTS else 32
    divisors = [n for n in range(wanted // 2, 2 * wanted + 1, 2) if num_draws % n == 0]
    return min(divisors, key=lambda n: abs(np.log(n / wanted)), default=wanted)
