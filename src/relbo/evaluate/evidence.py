"""Estimates the evidence of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoGuide

from relbo.core.bases import StandardNormal
from relbo.core.checks import check_instance, check_integer
from relbo.core.random import KeyLike
from relbo.core.refinement import Refinement
from relbo.evaluate.annealed import (
    ANNEALED,
    Bidirectional,
    annealed_log_weights,
    bidirectional,
)
from relbo.evaluate.annealed_path import AnnealedPath, path_between
from relbo.evaluate.annealing import AnnealingSettings
from relbo.evaluate.batches import map_with_keys
from relbo.evaluate.importance import importance_estimate
from relbo.evaluate.record import Evaluation
from relbo.guides import AutoRefined, refine
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem import Problem, read
from relbo.problem.call import Keywords
from relbo.problem.numpyro import logdensity, unconstrained_value
from relbo.problem.simulation import refuse_factors, simulate
from relbo.problem.traces import NEEDS_VALUES, Model


@dataclass(frozen=True)
class ImportanceSettings:
    """How many weighted draws of a guide are taken.

    Args:
        num_draws: number of draws.
        batch_size: number of draws at a time; all by default.
    """

    num_draws: int = 1_000
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_integer("num_draws", self.num_draws, 2)
        check_integer("batch_size", self.batch_size, 1, optional=True)


def log_evidence(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    guide: Model | None = None,
    params: dict[str, PyTree] | None = None,
    settings: AnnealingSettings | ImportanceSettings = AnnealingSettings(),
    smooth: bool = False,
    mesh: Mesh | None = None,
) -> Evaluation:
    r"""Estimates the log evidence $\log p(x)$ of a model.

    With `AnnealingSettings` it runs annealed importance sampling on the unconstrained latent
    values, from the guide's base normal (unrefined) or from a standard normal. With
    `ImportanceSettings` it averages the weights $p(x, z) / q(z)$ of draws from the guide; those
    of a refined guide are weights of whole paths.

    A second call on data of the same shapes needs no new compilation.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program with continuous latent sites, or a log density (see
            `model_from_logdensity`).
        args, kwargs: its arguments, with all of the data.
        guide: a trained guide: a refined one, an autoguide, or one of your own.
        params: the learned parameters of guide and model, as `SVI.get_params` returns them.
        settings: `AnnealingSettings`, or `ImportanceSettings`, which need a guide.
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
    params = params or {}
    problem = read(model, args, kwargs, params=params)
    if isinstance(guide, AbstractRefinedGuide):
        guide = guide.without_data()  # the same object after each fit, compiled once
    if isinstance(settings, AnnealingSettings):
        form = None if guide is None else _refined_form(guide, model, problem, params)
        log_weights = _with_data(
            problem,
            lambda p: annealed_log_weights(
                key, eqx.Partial(_path, p, params, form), settings, mesh
            ),
        )
        return importance_estimate(log_weights, estimator=ANNEALED, smooth=smooth)
    check_instance("settings", settings, ImportanceSettings, "AnnealingSettings()")
    if guide is None:
        raise ValueError("guide: ImportanceSettings draw from a guide, got none")
    log_weights = _with_data(
        problem,
        lambda p: map_with_keys(
            key,
            eqx.Partial(_log_weight, p, params, guide),
            settings.num_draws,
            batch_size=settings.batch_size or settings.num_draws,
            mesh=mesh,
        ),
    )
    valid = _refined_form(guide, model, problem, params, dependent=True).bound.valid
    return importance_estimate(log_weights, valid_bound=valid, smooth=smooth)


def bidirectional_evidence(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    params: dict[str, PyTree] | None = None,
    num_simulations: int = 8,
    settings: AnnealingSettings = AnnealingSettings(num_chains=16),
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
        num_simulations, settings, batch_size, mesh: as for `bidirectional`.

    Returns:
        A `Bidirectional`.
    """
    problem = read(model, args, kwargs, params=params)
    program = SimulatedData(problem)
    return bidirectional(
        key,
        program.simulate,
        program,
        _standard_normal(problem),
        num_simulations=num_simulations,
        settings=settings,
        batch_size=batch_size,
        mesh=mesh,
    )


class SimulatedData(eqx.Module):
    """A program that draws its own data, and its log density given those data."""

    problem: Problem

    def simulate(self, key: PRNGKeyArray) -> tuple[dict[str, Array], dict[str, Array]]:
        """Draws unconstrained latent values and data."""
        program, call = self.problem.program, self.problem.call
        model = handlers.substitute(program.model, data=self.problem.data.params)
        trace = simulate(model, key, call)
        refuse_factors(trace)
        latent = {site.name: unconstrained_value(trace[site.name]) for site in program.sites}
        return latent, {name: trace[name]["value"] for name in self.problem.observed()}

    def __call__(self, position: dict[str, Array], data: dict[str, Array]) -> Scalar:
        # Conditioning replaces the data that the model reads.
        model = handlers.condition(self.problem.program.model, data=dict(data))
        return logdensity(
            model, self.problem.call, jr.key(0), position, self.problem.data.params
        )


def _with_data(
    problem: Problem, compute: Callable[[Problem], Float[Array, " draws"]]
) -> Float[Array, " draws"]:
    """Computes with the data traced, or as constants if the guide needs their values."""
    try:
        return compute(problem)
    except NEEDS_VALUES:
        return compute(problem.with_constants())


def _path(
    problem: Problem, params: dict[str, PyTree], guide: AbstractRefinedGuide | None
) -> AnnealedPath:
    """Returns the path from the guide's base, or from a standard normal, to the posterior."""
    if guide is None:
        return path_between(_standard_normal(problem), problem.logdensity_at, whiten=True)
    with handlers.block(), handlers.substitute(data=params):
        start = guide.start(jr.key(0), problem.call)
    logdensity_fn = lambda position: problem.logdensity_at(guide.unpack(position))
    return path_between(start.base, logdensity_fn, whiten=True)


def _standard_normal(problem: Problem) -> StandardNormal:
    return StandardNormal(problem.unravel(jnp.zeros(problem.size)))


def _log_weight(
    problem: Problem, params: dict[str, PyTree], guide: Model, key: PRNGKeyArray
) -> Scalar:
    model, call = problem.program.model, problem.call
    loss: Any = Trace_ELBO().loss(key, params, model, guide, *call.args, **call.kwargs)
    return -loss


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

    It is kept for each guide, so that one guide is compiled once. With `dependent` the sites
    of the guide may depend on one another; a path cannot start from such a guide.
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
