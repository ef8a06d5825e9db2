"""Runs a model once on its data, to find mistakes before a long computation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from relbo.commands import InputError
from relbo.problem.call import Call
from relbo.problem.traces import (
    NEEDS_VALUES,
    Sites,
    discrete_latents,
    initial_run,
    is_observed,
    latent_names,
    trace_abstractly,
    unwrapped,
)


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
            if is_observed(site):
                _check_observation(name, site)
        is_improper = lambda site: isinstance(unwrapped(site["fn"]), dist.ImproperUniform)
        seen.append(
            ModelTrial(
                discrete=discrete_latents(trace),
                parameters=[n for n, site in trace.items() if site["type"] == "param"],
                improper=[n for n in latent_names(trace) if is_improper(trace[n])],
            )
        )

    trace_abstractly(visit)
    return seen[-1]


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
    except (*NEEDS_VALUES, NotImplementedError):
        # The support depends on traced values.
        return False
