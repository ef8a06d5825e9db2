"""The registry of front ends: what kinds of models can be read."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import PyTree

from relbo.problem.call import Keywords
from relbo.problem.foreign import ForeignDensity, read_foreign
from relbo.problem.logdensity import LogDensityModel, read_logdensity
from relbo.problem.numpyro import read_numpyro
from relbo.problem.problem import Problem


class FrontEnd(NamedTuple):
    """A kind of model that can be read as a `Problem`."""

    accepts: Callable[[Any], bool]
    read: Callable[[Any, tuple, Keywords, dict[str, PyTree]], Problem]
    """Takes the model, its `args`, its `kwargs` and trained parameters."""


def _is_pymc(model: Any) -> bool:
    """Whether a model is a PyMC model, without importing PyMC."""
    classes = ((one.__module__.partition(".")[0], one.__name__) for one in type(model).__mro__)
    return ("pymc", "Model") in classes


def _read_pymc(model: Any, args: tuple, kwargs: Keywords, params: dict[str, PyTree]) -> Problem:
    # Imported here, since PyMC is optional.
    from relbo.problem.pymc_model import read_pymc

    return read_pymc(model, args, kwargs, params)


FRONT_ENDS = [
    FrontEnd(lambda model: isinstance(model, LogDensityModel), read_logdensity),
    FrontEnd(_is_pymc, _read_pymc),
    FrontEnd(lambda model: isinstance(model, ForeignDensity), read_foreign),
    FrontEnd(callable, read_numpyro),
]
"""Tried in this order; the first that accepts a model reads it."""


def read(
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    params: dict[str, PyTree] | None = None,
) -> Problem:
    """Reads a model as a `Problem`.

    Args:
        model: a NumPyro program, a model made by `relbo.model_from_logdensity`, a PyMC model,
            a density from elsewhere (see `ForeignDensity`), or a `Problem`, which is returned
            as it is.
        args, kwargs: the arguments of the program.
        params: values of its parameters, such as those that `relbo.fit` returns; further ones
            are ignored.

    Returns:
        A `Problem`.

    Example:
        >>> import jax.numpy as jnp, relbo
        >>> model = relbo.model_from_logdensity(lambda z: -jnp.sum(z**2), jnp.zeros(3))
        >>> relbo.problem.read(model).size
        3
    """
    if isinstance(model, Problem):
        return model
    for front_end in FRONT_ENDS:
        if front_end.accepts(model):
            return front_end.read(model, args, kwargs, dict(params or {}))
    raise ValueError(
        "model: expected a NumPyro program, a PyMC model, relbo.model_from_logdensity(...) or "
        f"an object like relbo.problem.ForeignDensity, got {type(model).__name__}"
    )
