"""Runs a kernel of BlackJAX, or of the same protocol, in the whitened coordinates of a fit."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from relbo.gaussian import (
    WhiteningMap,
    WhiteningNormal,
    compiled_evaluate,
    white_logdensity,
    whitening_map,
)
from relbo.problem import Problem
from relbo.problem.call import ByIdentity
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.evidence import weigh
from relbo.sampling.findings import Finding, UnconstrainedChains, findings_of_chains
from relbo.sampling.rounds import ChainRun, PhaseClock

TUNING_LENGTH = 64
"""Iterations that tune the step size of a kernel."""
MAX_CHUNK = 16
"""Iterations after which the progress is shown and the time is checked."""
TARGET_ACCEPTANCE = 0.8


class KernelPath(NamedTuple):
    """What chains of a kernel visited."""

    white: Float[Array, "n c d"]
    acceptance: Float[Array, "n c"] | None
    """`None` if the kernel does not say."""
    energy: Float[Array, "n c"] | None
    diverging: Bool[Array, "n c"] | None
    num_steps: Int[Array, "n c"] | None


class KernelState(NamedTuple):
    """Where the chains of a kernel are."""

    states: Any
    """Of the kernel, one for each chain."""
    log_step: Scalar


def run_given_kernel(
    key: PRNGKeyArray,
    ensemble: Ensemble,
    kernel: Callable[..., Any],
    num_draws: int,
    num_evidence_draws: int,
    clock: PhaseClock,
) -> ChainRun:
    """Warms up the ensemble, and goes on from its chains with another kernel.

    If the kernel has a free parameter `step_size`, it is tuned and then fixed; a free
    `inverse_mass_matrix` is the identity, since the coordinates are white.
    """
    free = free_parameters(kernel)
    ensemble.warm_up()
    warm = ensemble.tuning()
    assert warm is not None
    dtype = np.dtype(jnp.result_type(float))
    fixed = (ensemble.problem, whitening_map(ensemble.normal, dtype), ByIdentity(kernel), free)
    length = -(-num_draws // ensemble.num_chains)
    chunk = min(length, MAX_CHUNK)
    start_key, tune_key, run_key = jr.split(key, 3)

    def run(key: PRNGKeyArray, state: KernelState, length: int, *, adapt: bool) -> Any:
        parts, phase = [], "warm up" if adapt else "sample"
        for done in range(0, length, chunk):
            ensemble.report(phase, done / length)
            part_key = jr.fold_in(key, done)
            state, path = _run(*fixed, part_key, state, chunk, done, adapt)
            parts.append(jax.tree.map(np.asarray, path))
            if ensemble.is_late():
                break
        ensemble.report(phase, 1.0)
        return state, jax.tree.map(lambda *parts: np.concatenate(parts)[:length], *parts)

    white = ensemble.normal.pull(warm.ends).astype(dtype)
    step_size = float(np.exp(warm.log_step))
    state = _start(*fixed, start_key, white)
    if "step_size" in free:
        state, tuning = run(tune_key, state, TUNING_LENGTH, adapt=True)
        if tuning.acceptance is None:
            raise ValueError(
                "kernel: its info has no acceptance_rate to tune step_size by; give it one, "
                "such as functools.partial(blackjax.mclmc, L=2.0, step_size=0.5)"
            )
        white, step_size = tuning.white[-1], float(jnp.exp(state.log_step))
    clock.lap("warm up")
    _, path = run(run_key, state, length, adapt=False)
    chains = _chain_draws(ensemble, white, path, step_size)
    clock.lap("sample")
    weights = weigh(ensemble, chains, num_evidence_draws)[1] if num_evidence_draws else None
    clock.lap("weigh")
    return ChainRun(chains, _findings(ensemble, chains), weights)


KNOWN_PARAMETERS = frozenset({"step_size", "inverse_mass_matrix"})


def free_parameters(kernel: Any) -> frozenset[str]:
    """Returns the names of parameters of a kernel that have no value."""
    given: set[str] = set()
    while isinstance(kernel, functools.partial):
        given |= set(kernel.keywords)
        kernel = kernel.func
    # What `blackjax.nuts` calls; its own signature says nothing.
    function = getattr(kernel, "differentiable", kernel)
    _, *parameters = inspect.signature(function).parameters.values()
    free = [
        one.name
        for one in parameters
        if one.default is inspect.Parameter.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and one.name not in given
    ]
    unknown = sorted(set(free) - KNOWN_PARAMETERS)
    if unknown:
        raise ValueError(
            f"kernel: its parameters {unknown} have no value; write "
            f"functools.partial(kernel, {', '.join(f'{name}=...' for name in unknown)})"
        )
    return frozenset(free)


def _algorithm(
    problem: Problem,
    whitening: WhiteningMap,
    kernel: ByIdentity,
    free: frozenset[str],
    log_step: Scalar,
) -> Any:
    """Returns the kernel for the density in white coordinates."""
    metric = jnp.ones(problem.size, log_step.dtype)
    values = {"step_size": jnp.exp(log_step), "inverse_mass_matrix": metric}
    logdensity_fn = functools.partial(white_logdensity, problem, whitening)
    return kernel.value(logdensity_fn, **{name: values[name] for name in free})


@functools.partial(jax.jit, static_argnames=("kernel", "free"))
def _start(
    problem: Problem,
    whitening: WhiteningMap,
    kernel: ByIdentity,
    free: frozenset[str],
    key: PRNGKeyArray,
    white: Float[Array, "c d"],
) -> KernelState:
    """Starts one chain in each point."""
    log_step = jnp.log(jnp.asarray(0.5, white.dtype))
    algorithm = _algorithm(problem, whitening, kernel, free, log_step)
    return KernelState(jax.vmap(algorithm.init)(white, jr.split(key, len(white))), log_step)


@functools.partial(jax.jit, static_argnames=("kernel", "free", "num_iterations"))
def _run(
    problem: Problem,
    whitening: WhiteningMap,
    kernel: ByIdentity,
    free: frozenset[str],
    key: PRNGKeyArray,
    state: KernelState,
    num_iterations: int,
    num_before: Int[Array, ""] | int,
    adapt: Bool[Array, ""] | bool,
) -> tuple[KernelState, KernelPath]:
    """Runs the chains, and tunes the step size if it is to be adapted."""

    def iterate(
        state: KernelState, turn: tuple[Array, PRNGKeyArray]
    ) -> tuple[KernelState, KernelPath]:
        number, key = turn
        algorithm = _algorithm(problem, whitening, kernel, free, state.log_step)
        keys = jr.split(key, jax.tree.leaves(state.states)[0].shape[0])
        states, info = jax.vmap(algorithm.step)(keys, state.states)
        acceptance = getattr(info, "acceptance_rate", None)
        log_step = state.log_step
        if acceptance is not None:
            pull = (jnp.mean(acceptance) - TARGET_ACCEPTANCE) / jnp.sqrt(1.0 + number)
            log_step = jnp.where(adapt, log_step + pull, log_step).astype(log_step.dtype)
        names = ("energy", "is_divergent", "num_integration_steps")
        path = KernelPath(
            states.position, acceptance, *(getattr(info, name, None) for name in names)
        )
        return KernelState(states, log_step), path

    turns = (num_before + jnp.arange(num_iterations), jr.split(key, num_iterations))
    return jax.lax.scan(iterate, state, turns)


def _chain_draws(
    ensemble: Ensemble, start: Float[np.ndarray, "c d"], path: KernelPath, step_size: float
) -> ChainDraws:
    """Returns what the chains visited, with the log density and the score there."""
    normal: WhiteningNormal = ensemble.normal
    white = np.asarray(path.white, float)
    shape, flat = white.shape[:2], white.reshape(-1, white.shape[2])
    here = compiled_evaluate(ensemble.problem, ensemble.num_chains)(normal, flat)
    if path.acceptance is None:
        before = np.concatenate([start[None], white[:-1]])
        acceptance = np.any(white != before, 2).astype(float)
    else:
        acceptance = np.asarray(path.acceptance, float)
    return ChainDraws(
        normal.push(white),
        normal.score(flat, here.score).reshape(white.shape),
        here.logdensity.reshape(shape),
        acceptance,
        # What the kernel does not say is not known, or did not happen, or is one step.
        np.full(shape, np.nan) if path.energy is None else np.asarray(path.energy, float),
        np.zeros(shape, bool) if path.diverging is None else np.asarray(path.diverging),
        np.ones(shape, int) if path.num_steps is None else np.asarray(path.num_steps),
        step_size,
        ensemble.num_superchains,
    )


def _findings(ensemble: Ensemble, chains: ChainDraws) -> list[Finding]:
    found = findings_of_chains(
        UnconstrainedChains(*chains[:4]),
        ensemble.problem.coordinate_names(),
        float(jnp.finfo(jnp.result_type(float)).eps),
    )
    if len(ensemble.modes) > 1:
        text = (
            "The fit found several modes, and chains of a given kernel do not weigh them: "
            "compare with the default sampler."
        )
        found.append(Finding(text, is_fatal=False))
    share = float(np.mean(chains.diverging))
    if share > 0:
        text = f"{share:.1%} of the trajectories diverged: the posterior has narrow places."
        found.append(Finding(text, is_fatal=share > 0.01))
    return found
