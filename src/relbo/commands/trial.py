"""Runs a model once on its data, to find mistakes before a long computation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from relbo.commands import InputError
from relbo.problem.call import Call
from relbo.problem.traces import Sites, initial_run, is_discrete, is_latent

_NEEDS_VALUES = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


class ModelTrial(NamedTuple):
    """Facts about a model, from one run."""

    discrete: list[str]
    """Discrete latent sites, which are summed out."""
    parameters: list[str]
    """Parameters without a prior."""
    improper: list[str]
    """Latent sites with an improper prior, for which the evidence is undefined."""


def try_model(model: Callable[..., Any], data: dict[str, Any]) -> ModelTrial:
    """Traces a model without computing values, and checks its observed sites.

    Raises:
        InputError: if the data of an observed site have the wrong shape or are outside its
            support.
    """
    seen: list[ModelTrial] = []

    def visit() -> None:
        trace = initial_run(model, Call((), data))
        for name, site in trace.items():
            if _is_observation(site):
                _check_observation(name, site)
        seen.append(_read(trace))

    try:
        jax.eval_shape(visit)
    except _NEEDS_VALUES:
        # The model branches on values, so it has to be run with them.
        visit()
    return seen[-1]


def _read(trace: dict[str, Sites]) -> ModelTrial:
    latent = {name: site for name, site in trace.items() if is_latent(site)}
    return ModelTrial(
        discrete=[name for name, site in latent.items() if is_discrete(site)],
        parameters=[name for name, site in trace.items() if site["type"] == "param"],
        improper=[name for name, site in latent.items() if _is_improper(site["fn"])],
    )


def _is_observation(site: Sites) -> bool:
    return (
        site["type"] == "sample"
        and site["is_observed"]
        and not isinstance(_unwrapped(site["fn"]), dist.Unit)
    )


def _check_observation(name: str, site: Sites) -> None:
    """Refuses data that NumPyro would broadcast or give zero probability silently."""
    given, expected = jnp.shape(site["value"]), site["fn"].shape()
    try:
        fits = jnp.broadcast_shapes(given, expected) == given
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f"the data of the site '{name}' have shape {given}, and the model expects "
            f"{expected} there"
        )
    site["fn"].log_prob(site["value"])
    if _is_outside_support(site):
        raise InputError(
            f"some data of the site '{name}' are outside its support ({site['fn'].support})"
        )


def _is_outside_support(site: Sites) -> bool:
    fn = site["fn"]
    # Masked values are arbitrary, and rounded numbers rarely lie exactly on a simplex.
    if fn.event_dim > 0 or isinstance(fn, dist.MaskedDistribution):
        return False
    try:
        with jax.ensure_compile_time_eval():
            return not bool(jnp.all(fn.support(site["value"])))
    except (*_NEEDS_VALUES, NotImplementedError):
        # The support depends on traced values.
        return False


def _is_improper(fn: Any) -> bool:
    return isinstance(_unwrapped(fn), dist.ImproperUniform)


def _unwrapped(fn: Any) -> Any:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn
