"""Many short chains from a model or a trained guide."""

import functools
import time
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro import handlers

from relbo._chains import Chains, Ensemble
from relbo._mesh import spread_over
from relbo._normal import Normal, normal_of_draws
from relbo._predictive import Program
from relbo._program import Call, Model, initial_run
from relbo._progress import progress_bar
from relbo._refined_guide import AbstractRefinedGuide
from relbo._target import Data, Target, target_of
from relbo.diagnostics import effective_sample_size, nested_rhat, stuck_chains
from relbo.posterior import Posterior

Method = Literal["hmc", "mala", "unadjusted"]


def sample(
    key: PRNGKeyArray,
    model: Model,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Any = None,
    params: dict[str, PyTree] | None = None,
    method: Method = "hmc",
    num_draws: int = 4000,
    num_chains: int | None = None,
    num_refined: int = 0,
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
) -> Posterior:
    """Draws from a posterior with many chains.

    They are Metropolis-adjusted, in whitened coordinates, unless one asks for another method.
    The chains start from draws of a guide and are whitened by its covariance; a short warm-up
    adapts both and the step size until they settle. Then everything is fixed and the chains
    sample the posterior exactly. Where their draws turn out to be worth too little, or have
    not forgotten where they started, they go on.

    Args:
        key: a random key.
        model: a NumPyro program.
        args, kwargs: its arguments.
        guide: a trained guide to start from; by default a normal is fitted here.
        params: the guide's parameters.
        method: `"hmc"`, or `"mala"` with one leapfrog a draw; or `"unadjusted"` for the sampler
            that a refined guide has learned, run on as it is: nothing is adapted, accepted or
            rejected, and the draws have the bias of its step size. A draw is taken every T
            steps.
        num_draws: how many draws to return.
        num_chains: how many chains to run; by default about 64, a divisor of `num_draws`.
        num_refined: how many draws of the refined normal to weigh, for the evidence.
        seconds: stop asking for more after so many.
        mesh: the devices that share the chains; all by default, as for `relbo.fit`.
            With `"unadjusted"` the chains run on one.
        progress: whether to show a bar.

    Returns:
        A `Posterior`.
    """
    started = time.monotonic()
    if _checked(method) == "unadjusted":
        return _sample_unadjusted(
            key, model, args, kwargs or {}, guide, params or {}, num_draws, num_chains
        )
    deadline = np.inf if seconds is None else started + seconds
    rng = np.random.default_rng(_seed_words(key))
    num_chains = _check_sizes(num_draws, num_chains)
    given = _model_parameters(model, args, kwargs, params)
    target, data = target_of(model, args, kwargs, given)
    with progress_bar(progress) as report:
        ensemble = Ensemble(
            rng,
            target,
            data,
            num_chains,
            method=method,
            report=report,
            deadline=deadline,
            spread=spread_over(mesh),
        )
        clock = _Clock(started)
        notes = _begin(ensemble, key, guide, params or {}, args, kwargs or {})
        clock.lap("fit")
        if not ensemble.warm_up():
            notes.append("The warm-up did not settle: the step size or the scales still moved.")
        clock.lap("warm up")
        chains = _sample_until_good(ensemble, num_draws)
        clock.lap("sample")
        log_weights = _weigh(ensemble, num_refined)
        clock.lap("weigh")
        values = _constrain(target, data, chains.draws)
        clock.lap("constrain")
    evidence, stderr = (None, None) if log_weights is None else log_mean_weight(log_weights)
    return Posterior(
        values,
        num_draws=min(num_draws, chains.logdensity.size),
        sample_stats={
            "lp": chains.logdensity.T,
            "acceptance_rate": chains.acceptance.T,
        },
        num_superchains=chains.num_superchains,
        step_size=chains.step_size,
        log_evidence=evidence,
        log_evidence_stderr=stderr,
        log_weights=log_weights,
        notes=tuple(notes),
        seconds=clock.laps,
        program=Program(model, Call(tuple(args), dict(kwargs or {})), given),
    )


def _sample_unadjusted(
    key: PRNGKeyArray,
    model: Model,
    args: tuple,
    kwargs: dict[str, Any],
    guide: Any,
    params: dict[str, PyTree],
    num_draws: int,
    num_chains: int | None,
) -> Posterior:
    """The learned sampler, run on."""
    if not isinstance(guide, AbstractRefinedGuide):
        raise ValueError(
            'method: "unadjusted" goes on with the sampler inside a refined guide; hand in '
            "guide=relbo.AutoRefined(model), trained with relbo.fit, and its params"
        )
    clock = _Clock(time.monotonic())
    num_chains = _check_sizes(num_draws, num_chains)
    given = _model_parameters(model, args, kwargs, params)
    target, data = target_of(model, args, kwargs, given)
    values = guide.sample_chains(
        key,
        params,
        *args,
        num_chains=num_chains,
        num_draws=-(-num_draws // num_chains),
        **kwargs,
    )
    # Through the unconstrained space, for the deterministic sites and the log density.
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in values.items()}
    points = np.asarray(_unconstrain(target, data, flat)).reshape(num_chains, -1, target.size)
    chains = _constrain(target, data, np.swapaxes(points, 0, 1))
    lp = _logdensities(target, data, points.reshape(-1, target.size)).reshape(num_chains, -1)
    clock.lap("sample")
    return Posterior(
        chains,
        num_draws=num_draws,
        sample_stats={"lp": np.asarray(lp)},
        num_superchains=num_chains,
        step_size=None,
        seconds=clock.laps,
        program=Program(model, Call(tuple(args), kwargs), given),
    )


class _Clock:
    """Seconds of each phase."""

    def __init__(self, start: float):
        self._last = start
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._last
        self._last = now


def _begin(
    ensemble: Ensemble,
    key: PRNGKeyArray,
    guide: Any,
    params: dict[str, PyTree],
    args: tuple,
    kwargs: dict[str, Any],
) -> list[str]:
    """Fits a normal and starts the chains; returns what was noticed."""
    if guide is None:
        settled = ensemble.fit(_start_of(ensemble.target))
        ensemble.disperse()
        return _notes(settled, len(ensemble.rivals))
    points = _guide_draws(ensemble, key, guide, params, args, kwargs)
    size = points.shape[1]
    wide = Normal(np.zeros(size), np.eye(size) if ensemble.normal.is_dense else np.ones(size))
    # Standardised first: scales may differ by many orders of magnitude.
    loc, scale = points.mean(0), points.std(0) + 1e-12
    rough, _ = normal_of_draws(wide, (points - loc) / scale)
    factor = scale[:, None] * rough.factor if wide.is_dense else scale * rough.factor
    ensemble.normal = Normal(loc + scale * rough.loc, factor)
    ensemble.disperse(points)
    return []


def _notes(settled: bool, num_rivals: int) -> list[str]:
    notes = []
    if not settled:
        notes.append("The normal fit did not settle: the posterior is far from one.")
    if num_rivals:
        notes.append(
            f"{num_rivals} of the fits from other places ended in other modes: chains were "
            "started there too, and cannot tell how much each mode weighs. Order or fix what "
            "can be exchanged, or sum it out."
        )
    return notes


def _guide_draws(
    ensemble: Ensemble,
    key: PRNGKeyArray,
    guide: Any,
    params: dict[str, PyTree],
    args: tuple,
    kwargs: dict[str, Any],
) -> Float[np.ndarray, "n d"]:
    """Draws of a guide in the target's unconstrained space."""
    number = max(512, 4 * ensemble.target.size)
    values = guide.sample_posterior(key, params, *args, sample_shape=(number,), **kwargs)
    names = [name for name, _ in ensemble.target.sites]
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"guide: it has no draws of the model's sites {missing}")
    points = _unconstrain(ensemble.target, ensemble.data, {n: values[n] for n in names})
    points = np.asarray(points, float)
    fine = np.all(np.isfinite(points), 1)
    if fine.sum() < ensemble.num_superchains:
        raise ValueError("guide: hardly any of its draws is finite; train it again")
    return points[fine]


@functools.partial(jax.jit, static_argnames=("target",))
def _unconstrain(target: Target, data: Data, values: dict[str, Array]) -> Float[Array, "n d"]:
    def one(value: dict[str, Array]) -> Float[Array, " d"]:
        free = target.unconstrained(value, data)
        return jnp.concatenate([jnp.ravel(free[name]) for name, _ in target.sites])

    return jax.vmap(one)(values)


@functools.partial(jax.jit, static_argnames=("target",))
def _constrained(target: Target, data: Data, points: Float[Array, "n d"]) -> dict[str, Array]:
    return jax.vmap(target.constrained, in_axes=(0, None))(points, data)


@functools.partial(jax.jit, static_argnames=("target",))
def _logdensities(
    target: Target, data: Data, points: Float[Array, "n d"]
) -> Float[Array, " n"]:
    return jax.vmap(target.logdensity, in_axes=(0, None))(points, data)


def _constrain(
    target: Target, data: Data, draws: Float[np.ndarray, "draws chains d"]
) -> dict[str, np.ndarray]:
    """Values by site, `[num_chains, draws, ...]`."""
    points = np.swapaxes(draws, 0, 1)
    flat = points.reshape(-1, target.size).astype(np.dtype(jnp.result_type(float)))
    values = _constrained(target, data, flat)
    return {
        n: np.asarray(v).reshape(*points.shape[:2], *v.shape[1:]) for n, v in values.items()
    }


def _sample_until_good(ensemble: Ensemble, num_draws: int) -> Chains:
    """Samples until the draws are worth half their number, or no more can be asked."""
    length = -(-num_draws // ensemble.num_chains)
    wanted = 0.5 * length * ensemble.num_chains
    chains = ensemble.sample(length)
    for _ in range(4):
        by_chain = np.swapaxes(chains.draws, 0, 1)
        worth = np.nanmin(effective_sample_size(by_chain), initial=np.inf)
        agrees = np.max(nested_rhat(by_chain, ensemble.num_superchains)) < 1.01
        stuck = np.any(stuck_chains(chains.acceptance.T, chains.logdensity.T))
        if (agrees and worth >= wanted and not stuck) or ensemble.is_late():
            break
        if ensemble.rivals and not agrees:
            break  # chains in several modes will not agree, however long they run
        longer = int(np.ceil(length * np.clip(1.2 * wanted / worth, 2, 16)))
        if agrees and not stuck and 4 * worth > wanted:
            chains = _joined(chains, ensemble.sample(longer))
        else:
            # What has not forgotten its start is no draw, but it knows the scales better. And
            # narrow places need smaller steps.
            ensemble.rewhiten(ensemble.white(chains))
            ensemble.method = ensemble.method.more_careful()
            ensemble.warm_up(max_windows=4)
            chains = ensemble.sample(longer)
    return _thinned(chains, length)


def _joined(one: Chains, other: Chains) -> Chains:
    both = lambda name: np.concatenate([getattr(one, name), getattr(other, name)])
    return one._replace(**{name: both(name) for name in ("draws", "logdensity", "acceptance")})


def _thinned(chains: Chains, length: int) -> Chains:
    """`length` draws a chain, spread evenly."""
    kept = (
        np.linspace(0, len(chains.draws) - 1, min(length, len(chains.draws)))
        .round()
        .astype(int)
    )
    return chains._replace(
        draws=chains.draws[kept],
        logdensity=chains.logdensity[kept],
        acceptance=chains.acceptance[kept],
    )


def _weigh(ensemble: Ensemble, num_refined: int) -> Float[np.ndarray, " n"] | None:
    if num_refined == 0:
        return None
    rounds = -(-num_refined // ensemble.num_chains)
    return ensemble.weigh(rounds)[1]


def log_mean_weight(log_weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The log of the mean weight, and its standard error by the delta method."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return -np.inf, np.inf
    weights = np.exp(log_weights - top)
    mean = weights.mean()
    return float(top + np.log(mean)), float(weights.std(ddof=1) / mean / len(weights) ** 0.5)


def _start_of(target: Target) -> Float[np.ndarray, " d"] | None:
    """Where a program around a log density wants to start."""
    start = getattr(target.model, "start", None)
    if start is None:
        return None
    return np.concatenate([np.ravel(start[name]) for name, _ in target.sites])


def _model_parameters(
    model: Model, args: tuple, kwargs: dict[str, Any] | None, params: dict[str, PyTree] | None
) -> dict[str, PyTree]:
    """Those of the trained parameters that belong to the model itself."""
    if not params:
        return {}
    found: list[str] = []

    def visit() -> None:
        trace = initial_run(
            handlers.substitute(model, data=params), Call(tuple(args), kwargs or {})
        )
        found.extend(name for name, site in trace.items() if site["type"] == "param")

    jax.eval_shape(visit)
    return {name: params[name] for name in found if name in params}


def _seed_words(key: PRNGKeyArray) -> list[int]:
    """A key as a seed for NumPy, typed or not."""
    data = jr.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return [int(word) for word in np.ravel(np.asarray(data))]


def _check_sizes(num_draws: int, num_chains: int | None) -> int:
    if num_draws < 1:
        raise ValueError(f"num_draws: expected at least 1, got {num_draws}")
    if num_chains is None:
        return _good_number_of_chains(num_draws)
    if num_chains < 4 or num_chains % 2:
        raise ValueError(f"num_chains: expected an even number of at least 4, got {num_chains}")
    return num_chains


def _good_number_of_chains(num_draws: int) -> int:
    """An even divisor of the draws near 64, so that no draw is thrown away."""
    divisors = [n for n in range(32, 129, 2) if num_draws % n == 0]
    return min(divisors, key=lambda n: abs(np.log(n / 64)), default=64)


def _checked(method: str) -> str:
    if method not in get_args(Method):
        raise ValueError(f"method: expected one of {get_args(Method)}, got {method!r}")
    return method
