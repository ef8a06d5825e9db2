"""Estimates the evidence of a model."""

from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoGuide

from relbo._devices import Spread, placed_arrays, spread_over
from relbo.core.bases import AbstractBase, StandardNormal
from relbo.core.random import KeyLike, as_key
from relbo.core.refinement import Refinement
from relbo.evaluate.annealed import (
    ANNEALED,
    Bidirectional,
    bidirectional,
    checked_settings,
)
from relbo.evaluate.annealed_path import path_between
from relbo.evaluate.annealing import AnnealingSettings, anneal
from relbo.evaluate.importance import importance_estimate, map_batched
from relbo.evaluate.record import Evaluation
from relbo.guides import AutoRefined, refine
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem import Problem, read
from relbo.problem.numpyro import logdensity, unconstrained_value
from relbo.problem.refusals import NEEDS_VALUES
from relbo.problem.traces import Model, Sites, initial_run, is_factor, latent_names, run

EvidenceMethod = Literal["ais", "importance"]
DEFAULT_DRAWS = {"ais": 64, "importance": 1_000}


def log_evidence(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Model | None = None,
    params: dict[str, PyTree] | None = None,
    method: EvidenceMethod = "ais",
    num_draws: int | None = None,
    num_temperatures: int = 1_000,
    num_leapfrogs: int = 5,
    target_acceptance: float = 0.8,
    batch_size: int | None = None,
    smooth: bool = False,
    mesh: Mesh | None = None,
) -> Evaluation:
    r"""Estimates the log evidence $\log p(x)$ of a model.

    `method="ais"` runs annealed importance sampling on the unconstrained latent values, from
    the guide's base normal (unrefined) or from a standard normal. `method="importance"`
    averages the weights $p(x, z) / q(z)$ of draws from the guide; those of a refined guide are
    weights of whole paths.

    A second call on data of the same shapes needs no new compilation.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program with continuous latent sites, or a log density (see
            `model_from_logdensity`).
        args, kwargs: its arguments, with all of the data.
        guide: a trained guide: a refined one, an autoguide, or one of your own.
        params: the learned parameters of guide and model, as `SVI.get_params` returns them.
        method: `"ais"` or `"importance"`, which needs a guide.
        num_draws: number of independent chains (64 by default) or weighted draws (1,000).
        num_temperatures, num_leapfrogs, target_acceptance: as for `annealed_importance`.
        batch_size: number of draws at a time with `"importance"`; all by default.
        smooth: whether to average Pareto-smoothed weights; see `importance_estimate`.
        mesh: the devices that share the chains or draws; all by default, as for `relbo.fit`.

    Returns:
        An `Evaluation`. Its expectation is a lower bound, unless the guide's account is a
        surrogate.

    Example:
        >>> import jax.random as jr, numpyro, numpyro.distributions as dist
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)
        >>> estimate = log_evidence(jr.key(0), model, (1.5,))  # log N(1.5; 0, sqrt 2) = -1.828
    """
    if method not in DEFAULT_DRAWS:
        raise ValueError(f'method: expected "ais" or "importance", got {method!r}')
    number = DEFAULT_DRAWS[method] if num_draws is None else num_draws
    params, spread = params or {}, spread_over(mesh)
    problem = read(model, args, kwargs, params=params)
    placed = placed_arrays(spread, (problem, as_key(key), params))
    if method == "ais":
        form = None if guide is None else _refined_form(guide, model, problem, params)
        settings = checked_settings(num_temperatures, number, num_leapfrogs, target_acceptance)
        log_weights = _call(_annealed_log_weights, *placed, form, settings, spread)
        return importance_estimate(log_weights, estimator=ANNEALED, smooth=smooth)
    if guide is None:
        raise ValueError('guide: method="importance" draws from a guide, got none')
    size = number if batch_size is None else batch_size
    log_weights = _call(_guide_log_weights, *placed, guide, number, size, spread)
    valid = _refined_form(guide, model, problem, params, dependent=True).bound.valid
    return importance_estimate(log_weights, valid_bound=valid, smooth=smooth)


def bidirectional_evidence(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    params: dict[str, PyTree] | None = None,
    num_simulations: int = 8,
    num_temperatures: int = 1_000,
    num_chains: int = 16,
    num_leapfrogs: int = 5,
    target_acceptance: float = 0.8,
    batch_size: int = 8,
    mesh: Mesh | None = None,
) -> Bidirectional:
    """Bounds the log evidence of data that the model simulates, from both sides.

    It shows how accurate annealing with the same settings is on similar data; see
    `bidirectional`. The observed sites are drawn, in the shapes that the arguments give.

    Args:
        key: a random key.
        model: a NumPyro program with proper priors and without factors.
        args, kwargs: its arguments.
        params: values of its parameters, if it has any.
        num_simulations, num_temperatures, num_chains: as for `bidirectional`.
        num_leapfrogs, target_acceptance, batch_size, mesh: as for `bidirectional`.

    Returns:
        A `Bidirectional`.
    """
    program = SimulatedData(read(model, args, kwargs, params=params))
    return bidirectional(
        as_key(key),
        program.simulate,
        program,
        StandardNormal(program.template),
        num_simulations=num_simulations,
        num_temperatures=num_temperatures,
        num_chains=num_chains,
        num_leapfrogs=num_leapfrogs,
        target_acceptance=target_acceptance,
        batch_size=batch_size,
        mesh=mesh,
    )


class SimulatedData(eqx.Module):
    """A program that draws its own data, and its log density given those data."""

    problem: Problem

    def simulate(self, key: PRNGKeyArray) -> tuple[dict[str, Array], dict[str, Array]]:
        """Draws unconstrained latent values and data."""
        observed = self._observed()
        trace = self._draw(key)
        latent = {
            name: unconstrained_value(trace[name])
            for name in latent_names(trace)
            if name not in observed
        }
        return latent, {name: trace[name]["value"] for name in observed}

    def __call__(self, position: dict[str, Array], data: dict[str, Array]) -> Scalar:
        # Conditioning replaces the data that the model reads.
        model = handlers.condition(self.problem.program.model, data=dict(data))
        return logdensity(
            model, self.problem.call, jr.key(0), position, self.problem.data.params
        )

    @property
    def template(self) -> dict[str, Array]:
        """Zeros in the shapes of the unconstrained latent values."""
        shapes = jax.eval_shape(lambda: self.simulate(jr.key(0))[0])
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def _observed(self) -> list[str]:
        trace = initial_run(self._program(), self.problem.call)
        seen = [n for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]]
        factors = [name for name in seen if is_factor(trace[name])]
        if factors:
            raise ValueError(
                f"the model has the factors {factors}, which cannot be simulated: the check "
                "needs a model that draws its own data"
            )
        return seen

    def _draw(self, key: PRNGKeyArray) -> dict[str, Sites]:
        program = handlers.seed(handlers.uncondition(self._program()), key)
        try:
            with handlers.block():
                return run(program, self.problem.call)
        except NotImplementedError as error:
            raise ValueError(
                "the model has a site that cannot be drawn, such as an improper prior: the "
                "check needs a model that draws its own parameters and data"
            ) from error

    def _program(self) -> Any:
        return handlers.substitute(self.problem.program.model, data=self.problem.data.params)


def _call(function: Callable, problem: Problem, *rest: Any) -> Float[Array, " draws"]:
    """Calls with the data traced, or as constants if the guide needs their values."""
    try:
        return function(problem, *rest)
    except NEEDS_VALUES:
        return function(problem.with_constants(), *rest)


@eqx.filter_jit
def _annealed_log_weights(
    problem: Problem,
    key: PRNGKeyArray,
    params: dict[str, PyTree],
    guide: AbstractRefinedGuide | None,
    settings: AnnealingSettings,
    spread: Spread | None,
) -> Float[Array, " chains"]:
    base, unpack = _base(guide, problem, params)
    path = path_between(base, lambda z: problem.logdensity_at(unpack(z)), whiten=True)
    return anneal(key, path, settings, spread=spread).log_weights


def _base(
    guide: AbstractRefinedGuide | None, problem: Problem, params: dict[str, PyTree]
) -> tuple[AbstractBase, Callable[[PyTree], dict[str, Array]]]:
    """Returns where chains start, and the map from there to unconstrained values by site."""
    if guide is None:
        like = problem.unravel(jnp.zeros(problem.size))
        return StandardNormal(like), lambda position: position
    with handlers.block(), handlers.substitute(data=params):
        start = guide.start(jr.key(0), problem.call)
    return start.base, guide.unpack


@eqx.filter_jit
def _guide_log_weights(
    problem: Problem,
    key: PRNGKeyArray,
    params: dict[str, PyTree],
    guide: Model,
    num_draws: int,
    batch_size: int,
    spread: Spread | None,
) -> Float[Array, " draws"]:
    model, call = problem.program.model, problem.call
    loss = Trace_ELBO()

    def log_weight(key: PRNGKeyArray) -> Scalar:
        value: Any = loss.loss(key, params, model, guide, *call.args, **call.kwargs)
        return -value

    return map_batched(log_weight, jr.split(key, num_draws), batch_size, spread)


_REFINED_FORMS: WeakKeyDictionary[Any, dict] = WeakKeyDictionary()


def _refined_form(
    guide: Model,
    model: Model,
    problem: Problem,
    params: dict[str, PyTree],
    *,
    dependent: bool = False,
) -> AbstractRefinedGuide:
    """Returns a guide without steps, which knows the guide's distributions by site.

    It is kept for each guide, so that one guide is compiled once.

    Args:
        guide: the guide.
        model: its model.
        problem: the model with its arguments.
        params: the parameters of both.
        dependent: whether sites may depend on one another; a path cannot start from those.
    """
    if isinstance(guide, AbstractRefinedGuide):
        guide.check_ready()
        return guide
    forms = _REFINED_FORMS.setdefault(guide, {})
    if dependent not in forms:
        if isinstance(guide, AutoGuide):
            form = AutoRefined(model, base=guide, num_steps=0)
        else:
            space = "unconstrained" if dependent else "whitened"
            form = refine(guide, model, refinement=Refinement(num_steps=0, space=space))
        call = problem.call
        with handlers.block(), handlers.seed(rng_seed=0), handlers.substitute(data=params):
            form._setup_prototype(*call.args, **call.kwargs)
        forms[dependent] = form
    return forms[dependent]
