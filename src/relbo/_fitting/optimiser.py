"""An optimiser whose rate the host can change between two chunks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree, Scalar

RATES = (0.03, 0.01, 0.003)
"""Of the default optimiser: the next one after each plateau."""
MAX_NORM = 10.0


class Adjusted(NamedTuple):
    """The state of an optimiser that `adjustable` made."""

    factor: Scalar
    """What every update is multiplied with."""
    scales: PyTree
    """The unit in which each parameter is moved, or `None` for one everywhere."""
    inner: Any


def default_optimiser() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(RATES[0]))


def adjustable(
    inner: optax.GradientTransformation, *, has_scales: bool
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimiser so that its updates can be made smaller while it runs.

    With scales it works in the parameters divided by them: where a posterior's standard
    deviation is 1e4 or 1e-4, an update of 0.03 standard deviations is as good as anywhere.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: PyTree) -> Adjusted:
        scales = jax.tree.map(jnp.ones_like, params) if has_scales else None
        return Adjusted(jnp.ones(()), scales, inner.init(params))

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, Any]:
        updates = _times(updates, state.scales)
        updates, after = inner.update(updates, state.inner, params, **extra)
        updates = _times(updates, state.scales)
        updates = jax.tree.map(lambda u: u * state.factor.astype(u.dtype), updates)
        return updates, state._replace(inner=after)

    return optax.GradientTransformationExtraArgs(init, update)


def _times(updates: PyTree, scales: PyTree) -> PyTree:
    return updates if scales is None else jax.tree.map(jnp.multiply, updates, scales)


def with_factor(optim_state: Any, factor: Scalar) -> Any:
    """NumPyro's state of an adjustable optimiser, with another factor."""
    count, (params, adjusted) = optim_state
    return count, (params, adjusted._replace(factor=factor.astype(adjusted.factor.dtype)))


def with_scales(optim_state: Any, scales: dict[str, Any], condition: Any) -> Any:
    """NumPyro's state of an adjustable optimiser, with units for some parameters if wanted."""
    count, (params, adjusted) = optim_state
    new = {
        name: jnp.where(condition, scale, adjusted.scales[name])
        for name, scale in scales.items()
    }
    return count, (params, adjusted._replace(scales={**adjusted.scales, **new}))
