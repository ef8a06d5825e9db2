"""Runs NumPyro programs, and reads facts off their traces."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpyro import handlers
from numpyro.distributions import Unit, biject_to, constraints
from numpyro.infer import init_to_uniform

from relbo.core.validity import Subsampling
from relbo.problem.call import Call

Model = Callable[..., Any]
Sites = dict[str, Any]

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""Raised where a program needs the values of its arguments while JAX traces it."""


def run(program: Any, call: Call) -> dict[str, Sites]:
    """Runs a program and returns its trace."""
    return handlers.trace(program).get_trace(*call.args, **call.kwargs)


def initial_run(model: Model, call: Call, seed: int = 0) -> dict[str, Sites]:
    """Runs a program with arbitrary values at its continuous latent sites.

    An improper prior has no draws, so the values come from NumPyro's initial strategy.
    """

    def start(site: Sites) -> Any:
        if site["value"] is None and is_latent(site) and not is_discrete(site):
            return init_to_uniform(site)
        return None

    with handlers.block():
        return run(handlers.substitute(handlers.seed(model, seed), substitute_fn=start), call)


def trace_abstractly(visit: Callable[..., None], *args: Any) -> None:
    """Calls a function on traced arguments, or on their values if a program needs these."""
    try:
        jax.eval_shape(visit, *args)
    except NEEDS_VALUES:
        visit(*args)


def is_latent(site: Sites) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def is_observed(site: Sites) -> bool:
    """Whether a site has data; a factor has none."""
    return site["type"] == "sample" and site["is_observed"] and not is_factor(site)


def data_names(trace: dict[str, Sites]) -> frozenset[str]:
    """Returns the sites that bring data into a density: observed values and factors."""
    return frozenset(
        name for name, s in trace.items() if s["type"] == "sample" and s["is_observed"]
    )


def batch_shape(site: Sites) -> tuple[int, ...]:
    """Returns the shape of the observations at a site, apart from that of each one.

    A value that is repeated over a plate is smaller than its distribution.
    """
    shape = jnp.shape(site["value"])
    batch = shape[: len(shape) - site["fn"].event_dim]
    return np.broadcast_shapes(batch, site["fn"].batch_shape)


def plate_dims(trace: dict[str, Sites]) -> dict[str, list[str]]:
    """Returns the names of the axes of sites in plates: a plate's own, or `site_dim_0`."""
    found = {}
    for name, site in trace.items():
        plates = site.get("cond_indep_stack") or []
        if site["type"] not in ("sample", "deterministic") or not plates:
            continue
        shape = jnp.shape(site["value"])
        # What a deterministic site has beside its plates is unknown.
        event_dim = site["fn"].event_dim if site["type"] == "sample" else 0
        dims = [f"{name}_dim_{axis}" for axis in range(len(shape))]
        for plate in plates:
            axis = len(shape) - event_dim + plate.dim
            if axis >= 0 and shape[axis] == plate.size:
                dims[axis] = plate.name
        found[name] = dims
    return found


def is_factor(site: Sites) -> bool:
    return isinstance(unwrapped(site["fn"]), Unit)


def unwrapped(fn: Any) -> Any:
    """Returns a distribution without its plates, masks and transforms."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def is_discrete(site: Sites) -> bool:
    return bool(site["fn"].support.is_discrete)


def is_real(support: Any) -> bool:
    if isinstance(support, constraints.independent):
        return is_real(support.base_constraint)
    return support is constraints.real


def latent_names(trace: dict[str, Sites]) -> list[str]:
    return [name for name, site in trace.items() if is_latent(site)]


def discrete_latents(trace: dict[str, Sites]) -> list[str]:
    return [name for name in latent_names(trace) if is_discrete(trace[name])]


def mutable_values(trace: dict[str, Sites]) -> dict[str, PyTree]:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "mutable"}


def has_local_sites(trace: dict[str, Sites]) -> bool:
    """Whether a latent site is in a subsampled plate."""
    return bool(_local_names(trace))


def moved_dimension(trace: dict[str, Sites]) -> int:
    """Counts the unconstrained values that the steps of a guide move.

    These are the values of the local sites, or of all sites where none is local.
    """
    sites = [trace[name] for name in _local_names(trace) or latent_names(trace)]
    shapes = (
        biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"])) for site in sites
    )
    return sum(math.prod(shape) for shape in shapes)


def subsampling(one: dict[str, Sites], other: dict[str, Sites]) -> Subsampling:
    """Decides from two runs whether the kernel and the loss see the same minibatch.

    A program that draws its own minibatch draws a new one for the loss. A minibatch that is an
    argument is shared by both, and shows the same observations in two runs. Local latent values
    belong to their own data, so that nothing has to be kept apart.
    """
    if has_local_sites(one):
        return "none"
    observed = [
        name
        for name, site in one.items()
        if site["type"] == "sample" and site["is_observed"] and _is_subsampled(one, site)
    ]
    if not observed:
        return "none"
    values = ((one[name]["value"], other[name]["value"]) for name in observed)
    shared = any(bool(jnp.array_equal(first, second)) for first, second in values)
    return "shared" if shared else "independent"


def _local_names(trace: dict[str, Sites]) -> list[str]:
    return [name for name in latent_names(trace) if _is_subsampled(trace, trace[name])]


def _is_subsampled(trace: dict[str, Sites], site: Sites) -> bool:
    return any(frame.size < trace[frame.name]["args"][0] for frame in site["cond_indep_stack"])
