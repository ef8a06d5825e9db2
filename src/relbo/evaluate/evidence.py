"""The evidence of a NumPyro model."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.distributions import Unit, biject_to
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoGuide

from relbo._mesh import Spread, placed_arrays, spread_over
from relbo._program import (
    Call,
    Model,
    Sites,
    discrete_latents,
    initial_run,
    latent_names,
    logdensity,
    run,
)
from relbo._refined_guide import AbstractRefinedGuide
from relbo.bases import AbstractBase, StandardNormal
from relbo.evaluate._annealing import Settings, anneal
from relbo.evaluate._hmc import path_between
from relbo.evaluate.annealed import (
    ANNEALED,
    Bidirectional,
    bidirectional,
    checked_settings,
)
from relbo.evaluate.importance import importance_estimate, map_batched
from relbo.evaluate.record import Evaluation
from relbo.guides import AutoRefined, refine

Method = Literal["ais", "importance"]
DEFAULT_DRAWS = {"ais": 64, "importance": 1_000}
NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Arguments(NamedTuple):
    """What a model and a guide are called with; arrays among it are traced."""

    args: tuple
    kwargs: dict[str, Any]
    params: dict[str, PyTree]

    @property
    def call(self) -> Call:
        return Call(self.args, self.kwargs)


class Frozen:
    """Arguments of a program that looks at their values: constants of what is compiled."""

    def __init__(self, arguments: Arguments):
        # As numpy arrays, since whatever jax computes while it traces has no value yet.
        is_array = lambda leaf: isinstance(leaf, jax.Array)
        concrete = lambda leaf: np.asarray(leaf) if is_array(leaf) else leaf
        args, kwargs = jax.tree.map(concrete, (arguments.args, arguments.kwargs))
        self.arguments = Arguments(args, kwargs, arguments.params)


def log_evidence(
    key: PRNGKeyArray,
    model: Model,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Model | None = None,
    params: dict[str, PyTree] | None = None,
    method: Method = "ais",
    num_draws: int | None = None,
    num_temperatures: int = 1_000,
    num_leapfrogs: int = 5,
    target_acceptance: float = 0.8,
    batch_size: int | None = None,
    smooth: bool = False,
    mesh: Mesh | None = None,
) -> Evaluation:
    r"""Estimates the log evidence $\log p(x)$ of a NumPyro model.

    With `method="ais"`, annealed importance sampling on the unconstrained latent values, from
    the guide's base normal (unrefined) or else from a standard normal. With
    `method="importance"`, the weights $p(x, z) / q(z)$ of draws from the guide; those of a
    refined guide are weights of whole paths.

    The same model again on data of the same shapes compiles nothing.

    Args:
        key: a random key.
        model: a NumPyro program with continuous latent sites.
        args, kwargs: its arguments, all of the data.
        guide: a trained guide: refined, any autoguide, or one of your own.
        params: the learned parameters of guide and model, as `SVI.get_params` returns them.
        method: `"ais"` or `"importance"`, which needs a guide.
        num_draws: independent chains (64 by default) or weighted draws (1,000).
        num_temperatures, num_leapfrogs, target_acceptance: as for `annealed_importance`.
        batch_size: draws at once with `"importance"`, all by default.
        smooth: average Pareto-smoothed weights; see `importance_estimate`.
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
    arguments, spread = _arguments(args, kwargs, params), spread_over(mesh)
    key, placed = placed_arrays(spread, (key, arguments))
    if method == "ais":
        refined = None if guide is None else _refined_form(guide, model, arguments)
        settings = checked_settings(num_temperatures, number, num_leapfrogs, target_acceptance)
        log_weights = _call(
            _annealed_log_weights, placed, key, model, refined, settings, spread
        )
        return importance_estimate(log_weights, estimator=ANNEALED, smooth=smooth)
    if guide is None:
        raise ValueError('guide: method="importance" draws from a guide, got none')
    size = number if batch_size is None else batch_size
    log_weights = _call(_guide_log_weights, placed, key, model, guide, number, size, spread)
    valid = _refined_form(guide, model, arguments, dependent=True).bound.valid
    return importance_estimate(log_weights, valid_bound=valid, smooth=smooth)


def bidirectional_evidence(
    key: PRNGKeyArray,
    model: Model,
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
    """Encloses the log evidence of data that the model simulates itself.

    Shows how well annealing with the same settings does on data like these; see
    `bidirectional`. The observed sites are drawn instead of read, in the shapes that the
    arguments give.

    Args:
        key: a random key.
        model: a NumPyro program with proper priors and without factors.
        args, kwargs: its arguments.
        params: values of its parameters, if it has such.
        num_simulations, num_temperatures, num_chains: as for `bidirectional`.
        num_leapfrogs, target_acceptance, batch_size, mesh: as for `bidirectional`.

    Returns:
        A `Bidirectional`.
    """
    arguments = _arguments(args, kwargs, params)
    program = Simulated(model, arguments)
    return bidirectional(
        key,
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


class Simulated(eqx.Module):
    """A program that draws its own data, and its log density given such data."""

    model: Model = eqx.field(static=True)
    arguments: Arguments

    def simulate(self, key: PRNGKeyArray) -> tuple[dict[str, Array], dict[str, Array]]:
        """Unconstrained latent values, and data."""
        observed = self._observed
        trace = self._draw(key)
        latent = {
            name: unconstrained_value(trace[name])
            for name in latent_names(trace)
            if name not in observed
        }
        return latent, {name: trace[name]["value"] for name in observed}

    def __call__(self, position: dict[str, Array], data: dict[str, Array]) -> Scalar:
        # Conditioning replaces what the model reads itself.
        model = handlers.condition(self.model, data=dict(data))
        call, params = self.arguments.call, self.arguments.params
        return logdensity(model, call, jr.key(0), position, params)

    @property
    def template(self) -> dict[str, Array]:
        """Zeros in the shapes of the unconstrained latent values."""
        shapes = jax.eval_shape(lambda: self.simulate(jr.key(0))[0])
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    @property
    def _observed(self) -> list[str]:
        trace = initial_run(_with_params(self.model, self.arguments), self.arguments.call)
        check_program(trace)
        seen = [n for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]]
        factors = [name for name in seen if isinstance(trace[name]["fn"], Unit)]
        if factors:
            raise ValueError(
                f"the model has the factors {factors}, which cannot be simulated: the check "
                "needs a model that draws its own data"
            )
        return seen

    def _draw(self, key: PRNGKeyArray) -> dict[str, Sites]:
        program = handlers.seed(handlers.uncondition(self.model), key)
        try:
            with handlers.block():
                return run(_with_params(program, self.arguments), self.arguments.call)
        except NotImplementedError as error:
            raise ValueError(
                "the model has a site that cannot be drawn, such as an improper prior: the "
                "check needs a model that draws its own parameters and data"
            ) from error


def check_program(trace: dict[str, Sites]) -> None:
    """Refuses what has no log density of continuous values and all data."""
    discrete = discrete_latents(trace)
    if discrete:
        raise ValueError(
            f"the latent sites {discrete} are discrete: sum them out with "
            "collapsed = relbo.collapse(model)"
        )
    if not latent_names(trace):
        raise ValueError("the model has no latent site: its evidence is its own density")
    subsampled = [
        frame.name
        for site in trace.values()
        if site["type"] == "sample"
        for frame in site["cond_indep_stack"]
        if frame.name in trace and frame.size < trace[frame.name]["args"][0]
    ]
    if subsampled:
        raise ValueError(
            f"the plate '{subsampled[0]}' is subsampled, and the logarithm of a subsampled "
            "weight is biased: call the model with all of its data"
        )


def unconstrained_value(site: Sites) -> Array:
    return biject_to(site["fn"].support).inv(site["value"])


def _arguments(
    args: tuple, kwargs: dict[str, Any] | None, params: dict[str, PyTree] | None
) -> Arguments:
    arguments = Arguments(tuple(args), dict(kwargs or {}), dict(params or {}))
    is_array = lambda leaf: isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
    return jax.tree.map(lambda x: jnp.asarray(x) if is_array(x) else x, arguments)


def _call(function: Callable, arguments: Arguments, *rest: Any) -> Float[Array, " draws"]:
    """Runs with the arguments traced, or as constants where the program needs their values."""
    try:
        return function(arguments, *rest)
    except NEEDS_VALUES:
        return function(Frozen(arguments), *rest)


def _thaw(arguments: Arguments | Frozen) -> Arguments:
    return arguments.arguments if isinstance(arguments, Frozen) else arguments


@eqx.filter_jit
def _annealed_log_weights(
    arguments: Arguments | Frozen,
    key: PRNGKeyArray,
    model: Model,
    guide: AbstractRefinedGuide | None,
    settings: Settings,
    spread: Spread | None,
) -> Float[Array, " chains"]:
    arguments = _thaw(arguments)
    trace = initial_run(_with_params(model, arguments), arguments.call)
    check_program(trace)
    base, unpack = _base(guide, arguments, trace)

    def logdensity_fn(position: PyTree) -> Scalar:
        return logdensity(model, arguments.call, jr.key(0), unpack(position), arguments.params)

    path = path_between(base, logdensity_fn, whiten=True)
    return anneal(key, path, settings, spread=spread).log_weights


def _base(
    guide: AbstractRefinedGuide | None, arguments: Arguments, trace: dict[str, Sites]
) -> tuple[AbstractBase, Callable[[PyTree], dict[str, Array]]]:
    """Where chains start, and the map from its position to unconstrained values by site."""
    if guide is None:
        like = {name: unconstrained_value(trace[name]) for name in latent_names(trace)}
        return StandardNormal(like), lambda position: position
    with handlers.block(), handlers.substitute(data=arguments.params):
        start = guide._start(jr.key(0), arguments.call)
    return start.base, guide._unpack


@eqx.filter_jit
def _guide_log_weights(
    arguments: Arguments | Frozen,
    key: PRNGKeyArray,
    model: Model,
    guide: Model,
    num_draws: int,
    batch_size: int,
    spread: Spread | None,
) -> Float[Array, " draws"]:
    arguments = _thaw(arguments)
    check_program(initial_run(_with_params(model, arguments), arguments.call))
    loss = Trace_ELBO()

    def log_weight(key: PRNGKeyArray) -> Scalar:
        given = arguments.params, model, guide
        value: Any = loss.loss(key, *given, *arguments.args, **arguments.kwargs)
        return -value

    return map_batched(log_weight, jr.split(key, num_draws), batch_size, spread)


def _with_params(model: Any, arguments: Arguments) -> Any:
    return handlers.substitute(model, data=arguments.params)


_REFINED_FORMS: WeakKeyDictionary[Any, dict] = WeakKeyDictionary()


def _refined_form(
    guide: Model, model: Model, arguments: Arguments, *, dependent: bool = False
) -> AbstractRefinedGuide:
    """A guide with no step inside, which knows the guide's distributions by site.

    Kept for each guide, so that the same one is compiled for once.

    Args:
        guide: the guide.
        model: its model.
        arguments: what they are called with.
        dependent: whether sites that depend on another are let pass; a path cannot start from
            such.
    """
    if isinstance(guide, AbstractRefinedGuide):
        guide._check_ready()
        return guide
    forms = _REFINED_FORMS.setdefault(guide, {})
    if dependent not in forms:
        if isinstance(guide, AutoGuide):
            form = AutoRefined(model, base=guide, num_steps=0)
        else:
            space = "unconstrained" if dependent else "whitened"
            form = refine(guide, model, num_steps=0, anneal=False, space=space)
        with handlers.block(), handlers.seed(rng_seed=0):
            with handlers.substitute(data=arguments.params):
                form._setup_prototype(*arguments.args, **arguments.kwargs)
        forms[dependent] = form
    return forms[dependent]
