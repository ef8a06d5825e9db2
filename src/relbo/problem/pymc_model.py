"""The front end for PyMC models."""
# pyright: reportMissingImports=false

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pymc as pm
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree, Scalar
from pymc.backends.arviz import (
    coords_and_dims_for_inferencedata,
    find_constants,
    find_observations,
)
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.util import is_transformed_name
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from relbo.problem.call import ByIdentity, Call, Keywords, refuse_arguments
from relbo.problem.problem import AbstractProgram, Position, Problem, Site
from relbo.problem.pymc_functions import graph_in_jax, logdensity_function
from relbo.problem.unconstrained import UnconstrainedModel


@dataclasses.dataclass(frozen=True)
class PyMCProgram(AbstractProgram):
    """A PyMC model with its data as constants."""

    source: ByIdentity
    """The model as the user wrote it."""
    version: tuple
    """What the model contained when it was read, since models and their data can change."""
    sites: tuple[Site, ...]
    frozen: Any = dataclasses.field(compare=False)
    """The model with constant data."""
    initial: dict[str, np.ndarray] = dataclasses.field(compare=False)

    @property
    def model(self) -> UnconstrainedModel:
        return UnconstrainedModel(self)

    @property
    def start(self) -> Position:
        return self.initial

    def logdensity(self, position: Position, data: PyTree) -> Scalar:
        return self._logp(*self._in_order(position))

    def constrain(self, position: Position, data: PyTree) -> dict[str, Array]:
        outputs = self._constrained(*self._in_order(position))
        return dict(zip(self._visible, map(jnp.asarray, outputs), strict=True))

    def unconstrain(self, values: Position, data: PyTree) -> Position:
        outputs = self._unconstrained(*self._in_order(values))
        names = (site.name for site in self.sites)
        return dict(zip(names, map(jnp.asarray, outputs), strict=True))

    def observed(self, data: PyTree) -> dict[str, ArrayLike]:
        return find_observations(self.frozen)

    def dims(self, data: PyTree) -> dict[str, list[str]]:
        return coords_and_dims_for_inferencedata(self.frozen)[1]

    def coords(self, data: PyTree) -> dict[str, Any]:
        return coords_and_dims_for_inferencedata(self.frozen)[0]

    def constants(self, data: PyTree) -> dict[str, ArrayLike]:
        return find_constants(self.frozen)

    def log_likelihood(self, draws: dict[str, Any], data: PyTree) -> dict[str, Array]:
        plain = remove_value_transforms(self.frozen)
        terms: Any = plain.logp(plain.observed_RVs, sum=False)
        try:
            function = graph_in_jax(self._inputs(plain), terms)
        except NotImplementedError as error:
            raise ValueError(
                f"the log likelihood has no form in JAX ({error}): use "
                "pm.compute_log_likelihood(posterior.to_arviz(), model=model)"
            ) from error
        pointwise = jax.jit(jax.vmap(lambda *values: tuple(function(*values))))
        names = (variable.name for variable in plain.observed_RVs)
        return dict(zip(names, pointwise(*self._in_order(draws)), strict=True))

    def predict(
        self, key: PRNGKeyArray, draws: dict[str, Any], data: PyTree, call: Call | None = None
    ) -> dict[str, Array]:
        if call is not None:
            raise ValueError(
                "args: a PyMC model holds its data; for new inputs use pm.set_data and "
                "pm.sample_posterior_predictive(posterior.to_arviz(), predictions=True)"
            )
        # In the precision that PyMC's functions expect.
        columns = {site.name: np.asarray(draws[site.name], float) for site in self.sites}
        number = len(next(iter(columns.values())))
        drawn = pm.sample_posterior_predictive(
            [{name: column[row] for name, column in columns.items()} for row in range(number)],
            model=self.frozen,
            random_seed=int(jr.randint(key, (), 0, 2**31 - 1)),
            progressbar=False,
            return_inferencedata=False,
        )
        observed = self.observed(data)
        # PyMC adds an axis for one chain.
        return {
            name: jnp.asarray(drawn[name]).reshape(number, *np.shape(observed[name]))
            for name in observed
        }

    def _in_order(self, position: Position) -> tuple[Array, ...]:
        return tuple(jnp.asarray(position[site.name]) for site in self.sites)

    def _inputs(self, model: Any) -> list[Any]:
        """Returns the value variables of a copy, which may have them in another order."""
        return [model.rvs_to_values[model[site.name]] for site in self.sites]

    @functools.cached_property
    def _logp(self) -> Callable:
        return logdensity_function(self.frozen, self._inputs(self.frozen))

    @functools.cached_property
    def _visible(self) -> dict[str, Any]:
        """The variables that a user sees, in PyMC's order."""
        variables = self.frozen.unobserved_value_vars
        return {one.name: one for one in variables if not is_transformed_name(one.name)}

    @functools.cached_property
    def _constrained(self) -> Callable:
        return graph_in_jax(self._inputs(self.frozen), list(self._visible.values()))

    @functools.cached_property
    def _unconstrained(self) -> Callable:
        free = [self.frozen[site.name] for site in self.sites]
        transforms = self.frozen.rvs_to_transforms
        outputs = [
            one if transforms[one] is None else transforms[one].forward(one, *one.owner.inputs)
            for one in free
        ]
        inputs = [one.type() for one in free]
        given = dict(zip(free, inputs, strict=True))
        return graph_in_jax(inputs, clone_replace(outputs, given))


def read_pymc(model: Any, args: tuple, kwargs: Keywords, params: dict[str, PyTree]) -> Problem:
    """Reads a PyMC model as a problem."""
    refuse_arguments(args, kwargs, "a PyMC model holds its data; change them with pm.set_data")
    if not model.free_RVs:
        raise ValueError("the model has no free variable: there is nothing to infer")
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"the free variables {discrete} are discrete, and gradients cannot move them: sum "
            "them out (pm.Mixture, pm.ZeroInflatedPoisson, or marginalize of pymc_extras), or "
            "use pm.sample, which has steps for them"
        )
    if _has_minibatches(model):
        raise ValueError(
            "the model observes minibatches (pm.Minibatch), and an exact log density needs all "
            "the data: observe the whole array, or use pm.fit"
        )
    start = model.initial_point()
    initial = {one.name: start[model.rvs_to_values[one].name] for one in model.free_RVs}
    sites = tuple(Site(name, value.shape) for name, value in initial.items())
    program = PyMCProgram(ByIdentity(model), _version(model), sites, _frozen(model), initial)
    return Problem(program, ())


def _has_minibatches(model: Any) -> bool:
    """Whether observed values are drawn at random."""
    inputs = graph_inputs(list(model.rvs_to_values.values()))
    return any(isinstance(one.type, RandomType) for one in inputs)


def _frozen(model: Any) -> Any:
    """Returns a copy of a model with its data as constants, without initial values.

    PyMC does not copy models with initial values.
    """
    initial_values = dict(model.rvs_to_initial_values)
    model.rvs_to_initial_values.update(dict.fromkeys(initial_values))
    try:
        return freeze_dims_and_data(model)
    finally:
        model.rvs_to_initial_values.update(initial_values)


def _version(model: Any) -> tuple:
    """Returns what changes if the model or its data do."""
    variables = [*model.basic_RVs, *model.deterministics, *model.potentials]
    values = [*variables, *model.rvs_to_values.values()]
    inputs: list[Any] = list(graph_inputs(values))
    shared = [one.get_value() for one in inputs if hasattr(one, "get_value")]
    arrays = [one for one in shared if isinstance(one, np.ndarray)]
    data = [(one.shape, hashlib.sha256(one.tobytes()).digest()) for one in arrays]
    return (*map(id, variables), *data, jnp.result_type(float))
