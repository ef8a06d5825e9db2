"""The front end for NumPyro programs."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.util import sum_rightmost
from numpyro.infer import Predictive
from numpyro.infer import log_likelihood as pointwise_log_likelihood
from numpyro.infer.util import (
    constrain_fn,
    helpful_support_errors,
    potential_energy,
    unconstrain_fn,
)
from numpyro.primitives import Messenger, mutable

from relbo.problem._collapse import CollapsedModel
from relbo.problem.call import Call, CallLayout, Keywords, checked_call, split_call
from relbo.problem.problem import AbstractProgram, Position, Problem, Site
from relbo.problem.refusals import (
    refuse_discrete,
    refuse_free_parameters,
    refuse_hidden,
    refuse_missing_data,
    refuse_subsampled,
    refuse_without_latents,
)
from relbo.problem.simulation import Unobserved
from relbo.problem.traces import (
    NEEDS_VALUES,
    Model,
    Sites,
    data_names,
    initial_run,
    is_observed,
    latent_names,
    plate_dims,
    run,
    trace_abstractly,
)


class NumPyroData(NamedTuple):
    """What may change from call to call without a new compilation."""

    arrays: tuple
    """The arrays among the arguments."""
    params: dict[str, PyTree]
    """Values of the program's own parameters."""


@dataclasses.dataclass(frozen=True)
class NumPyroProgram(AbstractProgram):
    """A NumPyro model with everything of its call that is not an array."""

    model: Model
    sites: tuple[Site, ...]
    layout: CallLayout

    def call(self, data: NumPyroData) -> Call:
        return self.layout.fill(data.arrays)

    def with_constants(self, data: NumPyroData) -> "tuple[NumPyroProgram, NumPyroData]":
        layout = self.layout.with_constants(data.arrays)
        return dataclasses.replace(self, layout=layout), data._replace(arrays=())

    def logdensity(self, position: Position, data: NumPyroData) -> Scalar:
        return logdensity(self.model, self.call(data), jr.key(0), position, data.params)

    def constrain(self, position: Position, data: NumPyroData) -> dict[str, Array]:
        program, call = self._seeded(data), self.call(data)
        with handlers.block():
            values = constrain_fn(
                program, call.args, call.kwargs, position, return_deterministic=True
            )
        return {name: values[name] for name in values if name not in data.params}

    def unconstrain(self, values: Position, data: NumPyroData) -> Position:
        program, call = self._seeded(data), self.call(data)
        with handlers.block():
            return unconstrain_fn(program, call.args, call.kwargs, values)

    def observed(self, data: NumPyroData) -> dict[str, ArrayLike]:
        trace = self._trace(data)
        return {name: site["value"] for name, site in trace.items() if is_observed(site)}

    def dims(self, data: NumPyroData) -> dict[str, list[str]]:
        return plate_dims(self._trace(data))

    def constants(self, data: NumPyroData) -> dict[str, ArrayLike]:
        call = self.call(data)
        named = inspect.signature(self.model).bind(*call.args, **call.kwargs).arguments
        observed = [np.asarray(value) for value in self.observed(data).values()]
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, jax.Array | np.ndarray)
            and not any(np.array_equal(value, other) for other in observed)
        }

    def log_likelihood(self, draws: dict[str, Any], data: NumPyroData) -> dict[str, Array]:
        if isinstance(self.model, CollapsedModel):
            latent = {site.name: draws[site.name] for site in self.sites}
            return self.model.log_likelihood(self.call(data), latent, data.params)
        program, call = self._with_params(data), self.call(data)
        values = pointwise_log_likelihood(
            program, draws, *call.args, parallel=True, **call.kwargs
        )
        return {name: values[name] for name in self.observed(data)}

    def predict(
        self,
        key: PRNGKeyArray,
        draws: dict[str, Any],
        data: NumPyroData,
        call: Call | None = None,
    ) -> dict[str, Array]:
        names = list(self.observed(data))
        if not names:
            raise ValueError("the model has no observed sites: nothing to predict")
        args, kwargs = self.call(data) if call is None else call
        latent = {site.name: draws[site.name] for site in self.sites}
        program = Unobserved(self._with_params(data))
        predictive = Predictive(program, latent, return_sites=names, parallel=True)
        return predictive(key, *args, **kwargs)

    def draw_prior(self, key: PRNGKeyArray, number: int, data: NumPyroData) -> dict[str, Array]:
        call = self.call(data)
        predictive = Predictive(Unobserved(self._with_params(data)), num_samples=number)
        return predictive(key, *call.args, **call.kwargs)

    def _with_params(self, data: NumPyroData) -> Any:
        return handlers.substitute(self._generative, data=data.params)

    @property
    def _generative(self) -> Model:
        """The program that draws the data: one without discrete sites summed out."""
        return self.model.model if isinstance(self.model, CollapsedModel) else self.model

    def _trace(self, data: NumPyroData) -> dict[str, Sites]:
        """Runs the generative program with arbitrary latent values."""
        return initial_run(self._with_params(data), self.call(data))

    def _seeded(self, data: NumPyroData) -> Any:
        return handlers.substitute(handlers.seed(self.model, jr.key(0)), data=data.params)


def read_numpyro(
    model: Model, args: tuple, kwargs: Keywords, params: dict[str, PyTree]
) -> Problem:
    """Reads a NumPyro model with its arguments as a problem, without running it.

    Arrays among the arguments are traced. Where the program needs their values while it is
    traced, they are constants instead.
    """
    call = checked_call(args, kwargs)
    refuse_hidden(handlers.substitute(model, data=params), call)
    layout, arrays = split_call(call)
    try:
        return _traced_problem(model, layout, NumPyroData(arrays, params))
    except NEEDS_VALUES:
        fixed = layout.with_constants(arrays)
        return _traced_problem(model, fixed, NumPyroData((), params))


def _traced_problem(model: Model, layout: CallLayout, data: NumPyroData) -> Problem:
    own_params: list[str] = []

    def visit(data: NumPyroData) -> Position:
        program = handlers.substitute(model, data=data.params)
        trace = initial_run(program, layout.fill(data.arrays))
        refuse_discrete(trace)
        refuse_without_latents(trace)
        refuse_subsampled(trace)
        refuse_free_parameters(trace, data.params)
        own_params.extend(name for name, site in trace.items() if site["type"] == "param")
        return {name: unconstrained_value(trace[name]) for name in latent_names(trace)}

    shapes = jax.eval_shape(visit, data)
    sites = tuple(Site(name, shape.shape) for name, shape in shapes.items())
    params = {name: data.params[name] for name in own_params}
    return Problem(NumPyroProgram(model, sites, layout), NumPyroData(data.arrays, params))


def unconstrained_value(site: Sites) -> Array:
    with helpful_support_errors(site):
        return biject_to(site["fn"].support).inv(site["value"])


def constrain_site(site: Sites, unconstrained: Array) -> tuple[Array, Array]:
    """Returns the constrained value at a site, and log abs det for each of its events."""
    with helpful_support_errors(site):
        transform = biject_to(site["fn"].support)
    value = transform(unconstrained)
    log_det = transform.log_abs_det_jacobian(unconstrained, value)
    event_dim = site["fn"].event_dim
    return value, sum_rightmost(log_det, jnp.ndim(log_det) - jnp.ndim(value) + event_dim)


def log_abs_det(model: Model, call: Call, values: dict[str, PyTree]) -> Scalar:
    """Computes log abs det of the map from unconstrained to constrained latent values.

    It is computed at constrained `values` of parameters and latent sites.
    """
    with handlers.block():
        trace = run(handlers.substitute(handlers.seed(model, jr.key(0)), data=values), call)
    sites = [trace[name] for name in latent_names(trace)]
    terms = [constrain_site(site, unconstrained_value(site))[1] for site in sites]
    return jnp.sum(jnp.stack([jnp.sum(term) for term in terms]))


def logdensity(
    model: Model,
    call: Call,
    key: PRNGKeyArray,
    unconstrained: Position,
    given: dict[str, PyTree],
    observed: Set[str] = frozenset(),
) -> Scalar:
    """Computes log p of a program at unconstrained latent values, including Jacobian terms.

    Args:
        model: the program.
        call: its arguments.
        key: for random choices of the program itself, such as the indices of a minibatch; the
            same key gives the same minibatch.
        unconstrained: values of its latent sites.
        given: values of parameters, mutable state, plates' indices and fixed latent sites.
        observed: the sites that must have data.
    """
    given = {
        n: fresh(value) if isinstance(value, dict) else value for n, value in given.items()
    }
    with handlers.block():
        known = _KnownSites(model, unconstrained.keys() | given.keys(), observed)
        program = handlers.substitute(handlers.seed(known, key), data=given)
        return jnp.negative(potential_energy(program, call.args, call.kwargs, unconstrained))


def has_data(model: Model, prototype: dict[str, Sites], call: Call) -> bool:
    """Whether a call has all the data of the call that a guide was set up with."""
    signature = inspect.signature(model)
    signature.bind_partial(*call.args, **call.kwargs)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError:
        return False
    found: set[str] = set()
    trace_abstractly(lambda: found.update(data_names(initial_run(model, call))))
    return data_names(prototype) <= found


def deterministic_values(
    model: Model,
    key: PRNGKeyArray,
    call: Call,
    values: dict[str, PyTree],
) -> dict[str, Array]:
    """Computes the deterministic sites at given values of parameters and latent sites."""
    program = handlers.substitute(handlers.seed(model, key), data=values)
    with handlers.block():
        trace = run(program, call)
    return {
        name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"
    }


def outer_values(trace: dict[str, Sites]) -> dict[str, PyTree]:
    """Returns the current values of a program's parameters and mutable state.

    Called where the guide runs, so that the optimiser substitutes the values it has now; the
    density that a kernel climbs must not use those of the first call.
    """
    states = {n: fresh(site["value"]) for n, site in trace.items() if site["type"] == "mutable"}
    values = {name: mutable(name, state) for name, state in states.items()}
    # An optimiser that is being set up passes the parameters of a guide on to the model, but
    # not its state, and Flax's modules need both or none: the model makes its own.
    is_new = any(values[name] is state for name, state in states.items())
    for name, site in trace.items():
        if site["type"] == "param":
            first = _initial_value(site)
            values[name] = (
                first(None) if is_new else numpyro.param(name, first, **site["kwargs"])
            )
    return values


def _initial_value(site: Sites) -> Callable[[Any], Any]:
    """Returns a function, since NumPyro would call a value that is callable, as networks are.

    A value that the program draws is drawn again, so that every seed of a fit starts elsewhere.
    """
    is_drawn = not site["args"]
    return lambda _: site["fn"]() if is_drawn else site["value"]


def fresh(tree: PyTree) -> PyTree:
    """Copies the containers of a tree, since programs change their mutable state in place."""
    return jax.tree.map(lambda leaf: leaf, tree)


@contextmanager
def substituted(key: PRNGKeyArray, params: dict[str, PyTree]) -> Iterator[None]:
    """Runs a guide with these parameters, and hides its sites from handlers outside."""
    with handlers.block(), handlers.seed(rng_seed=key), handlers.substitute(data=params):
        yield


def draw_key() -> PRNGKeyArray:
    """Returns a random key from the enclosing seed handler."""
    key = numpyro.prng_key()
    if key is None:
        raise ValueError("a guide draws: run it inside numpyro.handlers.seed")
    return key


class _KnownSites(Messenger):
    """Refuses a run that silently lacks data.

    A latent site without a value would be drawn from its prior, and without one of its observed
    sites the density would be another one.
    """

    def __init__(self, fn: Model, latent: Set[str], observed: Set[str]):
        super().__init__(fn)
        self.latent = latent
        self.missing = set(observed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        if self.missing:
            refuse_missing_data(f"observed sites {sorted(self.missing)} are missing")
        return result

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample":
            return
        if msg["is_observed"]:
            self.missing.discard(msg["name"])
        elif msg["value"] is None and msg["name"] not in self.latent:
            refuse_missing_data(f"site '{msg['name']}' is latent")
