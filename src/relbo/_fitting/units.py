"""The units in which the parameters of a normal base are moved."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions.util import matrix_to_tril_vec
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal

Units = Callable[[dict[str, Any]], dict[str, Array]]
"""Takes constrained parameters; gives units for the unconstrained ones."""


def normal_base(guide: Any) -> Any:
    """The normal that a guide is or has inside, or `None`."""
    base = getattr(guide, "base", guide)
    is_normal = type(base) in (AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal)
    return base if is_normal else None


def units_for(guide: Any) -> Units | None:
    """How far each parameter of a normal base may go in one go, from where they are now.

    An update is about as large as the learning rate, whatever the gradient. For a location
    whose standard deviation is 1e4 that would be nothing, and for one of 1e-4 chaos.
    """
    base = normal_base(guide)
    if base is None:
        return None
    prefix = base.prefix

    def dense(params: dict[str, Any]) -> dict[str, Array]:
        tril = params[f"{prefix}_scale_tril"]
        inverse = solve_triangular(tril, jnp.eye(len(tril), dtype=tril.dtype), lower=True)
        lone = _step(1.0 / jnp.linalg.norm(inverse, axis=0))
        return {f"{prefix}_loc": lone, f"{prefix}_scale_tril": _tril_units(tril, lone)}

    def by_site(params: dict[str, Any]) -> dict[str, Array]:
        units = {}
        for name in params:
            loc = name.removesuffix("scale") + "loc"
            if name.endswith(f"{prefix}_scale") and loc in params:
                lone = _step(params[name])
                units |= {loc: lone, name: _softplus_units(params[name], lone)}
        return units

    return dense if isinstance(base, AutoMultivariateNormal) else by_site


def _step(sd: Float[Array, " d"]) -> Float[Array, " d"]:
    """The unit for a coordinate with a standard deviation, given the others.

    Between a third and one it is one, so that ordinary models are trained as ever.
    """
    return jnp.maximum(sd, jnp.minimum(1.0, 3.0 * sd))


def _softplus_units(
    scale: Float[Array, " d"], change: Float[Array, " d"]
) -> Float[Array, " d"]:
    """How far the inverse softplus of a scale moves when the scale moves by `change`."""
    return change / -jnp.expm1(-scale)


def _tril_units(tril: Float[Array, "d d"], lone: Float[Array, " d"]) -> Float[Array, " n"]:
    """Units for NumPyro's unconstrained vector of a factor: rows over diagonal, diagonal.

    A row's entries move its coordinate alone, so that `lone` is the measure of them all.
    """
    diagonal = jnp.diagonal(tril)
    rows = jnp.broadcast_to((lone / diagonal)[:, None], tril.shape)
    change = diagonal * lone / jnp.linalg.norm(tril, axis=1)
    below = matrix_to_tril_vec(rows, diagonal=-1)
    return jnp.concatenate([below, _softplus_units(diagonal, change)])
