"""The coordinates that a refinement walks in, and positions as flat vectors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo.core.bases import AbstractBase, AbstractNormal, StandardNormal, zero_like

LogDensity = Callable[[PyTree], Scalar]
"""Maps one position to log p(x, z)."""


class Coordinates(NamedTuple):
    """A base and a log density in the coordinates that the steps walk in."""

    base: AbstractBase
    logdensity_fn: LogDensity
    to_position: Callable[[PyTree], tuple[PyTree, Scalar]]
    """Maps these coordinates to (z, log abs det)."""


def coordinates(base: AbstractBase, logdensity_fn: LogDensity, *, whiten: bool) -> Coordinates:
    """Returns the base's whitened coordinates if they are wanted and it has them, else its own.

    In the coordinates u with z = transform(u) the base is N(0, I).
    """
    if not (whiten and isinstance(base, AbstractNormal)):
        return Coordinates(base, logdensity_fn, lambda z: (z, zero_like(z)))

    def white_logdensity(noise: PyTree) -> Scalar:
        position, log_det = base.transform(noise)
        return logdensity_fn(position) + log_det

    return Coordinates(StandardNormal(base.noise), white_logdensity, base.transform)


def repeat(fn: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray, number: int | None) -> Any:
    """Calls `fn` with `key`, or with `number` keys split from it along a leading axis."""
    return fn(key) if number is None else jax.vmap(fn)(jr.split(key, number))


def for_each(fn: Callable, number: int | None) -> Callable:
    """Returns `fn` itself, or `fn` over a leading axis where there is a number of particles."""
    return fn if number is None else jax.vmap(fn)


def flattener(template: PyTree) -> tuple[Callable[[PyTree], Array], Callable[[Array], PyTree]]:
    """Returns the maps from a position like `template` to a vector `[d]` and back."""
    return (lambda z: ravel_pytree(z)[0]), ravel_pytree(template)[1]


def flat_logdensity(
    logdensity_fn: LogDensity, unravel: Callable[[Array], PyTree]
) -> Callable[[Array], Scalar]:
    """Returns the log density of a flat position; refuses values that are not one number."""
    return lambda z: _checked_scalar(logdensity_fn(unravel(z))).astype(z.dtype)


def _checked_scalar(value: Any) -> Array:
    value = jnp.asarray(value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "logdensity_fn: expected one real number at one position, got an array of shape "
            f"{value.shape} and type {value.dtype}; sum over data points and coordinates, and "
            "let relbo vectorise over draws"
        )
    return value
