"""A model run once on its data, before anything that takes long."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from relbo._program import Call, Sites, initial_run, is_discrete, is_latent
from relbo.commands import InputError

_NEEDS_VALUES = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


class Trial(NamedTuple):
    """What one run tells of a model."""

    discrete: list[str]
    """Latent sites to be summed out."""
    parameters: list[str]
    """Parameters without a prior."""
    improper: list[str]
    """Latent sites whose prior has no mass, so that there is no evidence."""


def try_model(model: Callable[..., Any], data: dict[str, Any]) -> Trial:
    """Runs a model for its shapes alone, and refuses data that do not go with it.

    Raises:
        InputError: where an observed site's data have the wrong shape or are off its support.
    """
    seen: list[Trial] = []

    def visit() -> None:
        trace = initial_run(model, Call((), data))
        for name, site in trace.items():
            if _is_observation(site):
                _check_observation(name, site)
        seen.append(_read(trace))

    try:
        jax.eval_shape(visit)
    except _NEEDS_VALUES:
        # The model looks at values while it runs: so it has to be run in earnest.
        visit()
    return seen[-1]


def _read(trace: dict[str, Sites]) -> Trial:
    latent = {name: site for name, site in trace.items() if is_latent(site)}
    return Trial(
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
    """NumPyro would stretch the data or take an impossible value without a word."""
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
    if _is_off_support(site):
        raise InputError(
            f"some data of the site '{name}' are off its support ({site['fn'].support})"
        )


def _is_off_support(site: Sites) -> bool:
    fn = site["fn"]
    # What is masked may be anything, and rounded numbers are hardly ever exactly on a simplex.
    if fn.event_dim > 0 or isinstance(fn, dist.MaskedDistribution):
        return False
    try:
        with jax.ensure_compile_time_eval():
            return not bool(jnp.all(fn.support(site["value"])))
    except (*_NEEDS_VALUES, NotImplementedError):
        # Its edges depend on other values.
        return False


def _is_improper(fn: Any) -> bool:
    return isinstance(_unwrapped(fn), dist.ImproperUniform)


def _unwrapped(fn: Any) -> Any:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn
