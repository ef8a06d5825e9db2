"""The posterior of a NumPyro program as a density over one vector, to be compiled once."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import (
    constrain_fn,
    helpful_support_errors,
    potential_energy,
    unconstrain_fn,
)

from relbo._program import Call, Model, Sites, initial_run, is_discrete, latent_names

_DATA_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Target(NamedTuple):
    """What a compiled sampler needs to know of a program, apart from its data.

    It is hashable, and two calls of one program with data of one shape give equal targets, so
    that what was compiled for the first is used for the second.
    """

    model: Model
    structure: Any
    """Of the call: where its arrays go."""
    constants: tuple
    """What of the call is not an array."""
    sites: tuple[tuple[str, tuple[int, ...]], ...]
    """The latent sites and their unconstrained shapes, in the order of the vector."""

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape)) for _, shape in self.sites)

    def logdensity(self, vector: Float[Array, " d"], data: Any) -> Scalar:
        """log p at unconstrained values, Jacobians included."""
        call, given = self._filled(data)
        with handlers.block():
            program = handlers.substitute(handlers.seed(self.model, jr.key(0)), data=given)
            energy = potential_energy(program, call.args, call.kwargs, self.unravel(vector))
        return jnp.negative(energy)

    def constrained(self, vector: Float[Array, " d"], data: Any) -> dict[str, Array]:
        """Values of all latent and deterministic sites."""
        call, given = self._filled(data)
        program = handlers.substitute(handlers.seed(self.model, jr.key(0)), data=given)
        with handlers.block():
            values = constrain_fn(
                program, call.args, call.kwargs, self.unravel(vector), return_deterministic=True
            )
        return {name: values[name] for name in values if name not in given}

    def unconstrained(self, values: dict[str, Array], data: Any) -> dict[str, Array]:
        """The unconstrained values of constrained ones."""
        call, given = self._filled(data)
        program = handlers.substitute(handlers.seed(self.model, jr.key(0)), data=given)
        with handlers.block():
            return unconstrain_fn(program, call.args, call.kwargs, values)

    def unravel(self, vector: Float[Array, " d"]) -> dict[str, Array]:
        values, start = {}, 0
        for name, shape in self.sites:
            stop = start + int(np.prod(shape))
            values[name] = jnp.reshape(vector[start:stop], shape)
            start = stop
        return values

    def coordinate_names(self) -> list[str]:
        """A name for each entry of the vector, such as `theta[3]`."""
        return [
            name + ("" if index == () else "[" + ",".join(map(str, index)) + "]")
            for name, shape in self.sites
            for index in np.ndindex(*shape)
        ]

    def _filled(self, data: "Data") -> tuple[Call, dict[str, PyTree]]:
        leaves = eqx.combine(list(data.arrays), list(self.constants))
        return jax.tree.unflatten(self.structure, leaves), data.given


class Data(NamedTuple):
    """What may change from call to call without a new compilation."""

    arrays: tuple
    given: dict[str, PyTree]
    """Values of the program's own parameters."""


def target_of(
    model: Model, args: tuple, kwargs: dict[str, Any] | None, given: dict[str, PyTree]
) -> tuple[Target, Data]:
    """Reads the latent sites off a program without running it.

    Args:
        model: the program.
        args, kwargs: its arguments. Arrays among them become arguments of the compiled sampler;
            where the program looks at their values while it is traced, they are constants.
        given: values of its parameters.
    """
    leaves, structure = jax.tree.flatten(Call(tuple(args), dict(kwargs or {})))
    leaves = [np.asarray(x) if isinstance(x, np.generic) else x for x in leaves]
    arrays, constants = eqx.partition(leaves, eqx.is_array)
    try:
        return _traced_target(model, structure, tuple(arrays), tuple(constants), given)
    except _DATA_NEEDED:
        pinned = _Pinned(model, leaves, structure)
        return _traced_target(pinned, jax.tree.structure(Call((), {})), (), (), given)


class _Pinned:
    """A program with its arguments filled in."""

    def __init__(self, model: Model, leaves: list[Any], structure: Any):
        self.model, self.call = model, jax.tree.unflatten(structure, leaves)

    def __call__(self) -> Any:
        return self.model(*self.call.args, **self.call.kwargs)


def _traced_target(
    model: Model, structure: Any, arrays: tuple, constants: tuple, given: dict[str, PyTree]
) -> tuple[Target, Data]:
    def visit(data: Data) -> dict[str, Array]:
        call = jax.tree.unflatten(structure, eqx.combine(list(data.arrays), list(constants)))
        program = handlers.substitute(model, data=data.given)
        trace = initial_run(program, call)
        _refuse(trace, data.given)
        return {name: _unconstrained(trace[name]) for name in latent_names(trace)}

    data = Data(arrays, given)
    shapes = jax.eval_shape(visit, data)
    sites = tuple((name, shape.shape) for name, shape in shapes.items())
    return Target(model, structure, constants, sites), data


def _unconstrained(site: Sites) -> Array:
    with helpful_support_errors(site):
        return biject_to(site["fn"].support).inv(site["value"])


def _refuse(trace: dict[str, Sites], given: dict[str, PyTree]) -> None:
    """What cannot be sampled exactly is refused here, with what to do instead."""
    discrete = [name for name in latent_names(trace) if is_discrete(trace[name])]
    if discrete:
        raise ValueError(
            f"the latent sites {discrete} are discrete: sum them out with relbo.collapse(model)"
        )
    if not latent_names(trace):
        raise ValueError("the model has no continuous latent site: there is nothing to infer")
    free = [n for n, site in trace.items() if site["type"] == "param" and n not in given]
    if free:
        raise ValueError(
            f"the model has parameters {free} without a prior: train them with relbo.fit, or "
            "give infer a guide, such as guide=relbo.AutoRefined(model), which does so"
        )
    subsampled = [
        name
        for name, site in trace.items()
        if site["type"] == "plate" and len(site["value"]) < site["args"][0]
    ]
    if subsampled:
        raise ValueError(
            f"the plates {subsampled} are subsampled, and an exact step needs all the data: "
            "call the model without subsample_size, or train with relbo.fit alone"
        )
