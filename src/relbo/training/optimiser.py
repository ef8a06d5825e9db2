"""An optimiser with updates that the host can scale, and the units of a normal base."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree, Scalar
from numpyro.distributions.util import matrix_to_tril_vec
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.optim import _NumPyroOptim, optax_to_numpyro

from relbo.guides.bent_normal import AutoBentNormal
from relbo.guides.stretched_normal import AutoStretchedNormal
from relbo.guides.warm_start import normal_base

RATE = 0.02
"""The learning rate of the default optimiser until it cools."""
MAX_NORM = 10.0
MAX_AT_FULL_RATE = 200
"""The largest number of parameters of a warm base that move at the full rate. The noise of each
costs the same, about 0.001 nats at the full rate, and they are near their optimum already."""

Units = Callable[[dict[str, Any]], dict[str, Array]]
"""Maps constrained parameters to units for the unconstrained ones."""


class ScaledState(NamedTuple):
    """The state of an optimiser made by `scalable`."""

    factor: Scalar
    """The factor of every update."""
    units: Array
    """The unit in which each parameter moves; one, or a vector for a `FlatOptimiser`."""
    inner: Any


class FlatOptimiser(_NumPyroOptim):
    """Trains one vector with all parameters, in units.

    An update of 0.03 standard deviations is reasonable whether a posterior's standard deviation
    is 1e4 or 1e-4. The operations of an optimiser, which a program repeats for each array of
    parameters, compile once.

    Args:
        inner: an optimiser of optax that treats all parameters alike.
    """

    _unravel: Callable[[Array], PyTree]

    def __init__(self, inner: optax.GradientTransformation):
        scaled = optax_to_numpyro(scalable(inner))

        def init(params: PyTree) -> Any:
            flat, self._unravel = ravel_pytree(params)
            flat, state = scaled.init_fn(flat)
            return flat, state._replace(units=jnp.ones_like(flat))

        def update(step: Any, gradients: PyTree, state: Any, value: Any) -> Any:
            return scaled.update_fn(step, self.vector(gradients), state, value=value)

        functions = init, update, lambda state: self._unravel(state[0])
        super().__init__(lambda: functions, update_with_value=True)

    def vector(self, tree: PyTree) -> Float[Array, " n"]:
        """Returns the vector of a pytree in the structure of the parameters."""
        return ravel_pytree(tree)[0]


def default_optimiser() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATE))


def scalable(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimiser so that its updates can be scaled while it runs."""
    inner = optax.with_extra_args_support(inner)

    def init(params: PyTree) -> ScaledState:
        return ScaledState(jnp.ones(()), jnp.ones(()), inner.init(params))

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, Any]:
        times = lambda tree, x: jax.tree.map(lambda u: u * x.astype(u.dtype), tree)
        updates, after = inner.update(times(updates, state.units), state.inner, params, **extra)
        return times(updates, state.factor * state.units), state._replace(inner=after)

    return optax.GradientTransformationExtraArgs(init, update)


def rescaled(
    optim_state: Any, factor: Scalar, units: Float[Array, " n"] | None, has_new_units: Any
) -> Any:
    """Returns NumPyro's state of a scalable optimiser with another factor and other units."""
    count, (params, scaled) = optim_state
    if units is not None:
        units = jnp.where(has_new_units, units, scaled.units).astype(scaled.units.dtype)
        scaled = scaled._replace(units=units)
    factor = factor.astype(scaled.factor.dtype)
    return count, (params, scaled._replace(factor=factor))


def slowed(units: dict[str, Array]) -> dict[str, Array]:
    """Returns smaller units where they are those of many parameters."""
    number = sum(unit.size for unit in units.values())
    share = min(1.0, MAX_AT_FULL_RATE / max(number, 1))
    return {name: share * unit for name, unit in units.items()}


def units_for(guide: Any) -> Units | None:
    """Returns a function that computes how far each parameter of a normal base may move.

    An Adam update is about as large as the learning rate, whatever the gradient. For a location
    with a standard deviation of 1e4 it would be negligible, for one with 1e-4 far too large.
    """
    base = normal_base(guide)
    if base is None:
        return None
    prefix = base.prefix

    def dense(params: dict[str, Any]) -> dict[str, Array]:
        tril = params[f"{prefix}_scale_tril"]
        inverse = solve_triangular(tril, jnp.eye(len(tril), dtype=tril.dtype), lower=True)
        unit = 1.0 / jnp.linalg.norm(inverse, axis=0)
        units = _matrix_units if isinstance(base, AutoBentNormal) else _vector_units
        return {f"{prefix}_loc": unit, f"{prefix}_scale_tril": units(tril, unit)}

    def by_site(params: dict[str, Any]) -> dict[str, Array]:
        units = {}
        for name in params:
            loc = name.removesuffix("scale") + "loc"
            if name.endswith(f"{prefix}_scale") and loc in params:
                unit = params[name]
                units |= {loc: unit, name: _softplus_units(params[name], unit)}
        return units

    def stretched(params: dict[str, Any]) -> dict[str, Array]:
        scale, axes = params[f"{prefix}_scale"], params[f"{prefix}_axes"]
        squares, stretch = jnp.square(axes), params[f"{prefix}_stretch"]
        unit = scale / jnp.sqrt(1.0 + squares @ (stretch**-2.0 - 1.0))
        sd = scale * jnp.sqrt(1.0 + squares @ (jnp.square(stretch) - 1.0))
        return {
            f"{prefix}_loc": unit,
            f"{prefix}_scale": unit / sd,
            f"{prefix}_stretch": jnp.ones_like(stretch),
        }

    if isinstance(base, AutoStretchedNormal):
        return stretched
    return dense if isinstance(base, AutoMultivariateNormal | AutoBentNormal) else by_site


def _softplus_units(
    scale: Float[Array, "*d"], change: Float[Array, "*d"]
) -> Float[Array, "*d"]:
    """Computes how far the inverse softplus of a scale moves if the scale moves by `change`."""
    return change / -jnp.expm1(-scale)


def _matrix_units(tril: Float[Array, "d d"], unit: Float[Array, " d"]) -> Float[Array, "d d"]:
    """Computes units for the unconstrained matrix of a factor, see `TriangularTransform`."""
    below, change = _row_units(tril, unit)
    diagonal = jnp.diagonal(tril)
    rows = jnp.broadcast_to(below[:, None], tril.shape)
    return jnp.where(jnp.eye(len(tril), dtype=bool), (change / diagonal)[:, None], rows)


def _vector_units(tril: Float[Array, "d d"], unit: Float[Array, " d"]) -> Float[Array, " n"]:
    """Computes units for NumPyro's unconstrained vector of a factor.

    It has the entries below the diagonal, each row divided by its diagonal, then the diagonal.
    """
    below, change = _row_units(tril, unit)
    rows = jnp.broadcast_to(below[:, None], tril.shape)
    packed = matrix_to_tril_vec(rows, diagonal=-1)
    return jnp.concatenate([packed, _softplus_units(jnp.diagonal(tril), change)])


def _row_units(
    tril: Float[Array, "d d"], unit: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Returns units for the entries below the diagonal, and how far the diagonal may move.

    The entries of a row move its coordinate only, so that they all share its unit.
    """
    diagonal = jnp.diagonal(tril)
    return unit / diagonal, diagonal * unit / jnp.linalg.norm(tril, axis=1)
