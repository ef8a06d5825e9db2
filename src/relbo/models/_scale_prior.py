"""A half-normal prior whose unconstrained coordinate is normal."""

import math
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import erf, erfinv, ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array
from numpyro.distributions import HalfNormal, constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ParameterFreeTransform,
    biject_to,
)

_MEDIAN = 0.6744897501960817
"""Of the standard half-normal."""
_LOWEST = -12.0
"""Where the standard half-normal's quantile is near the smallest number in float32."""


class NormalScale(HalfNormal):
    """NumPyro's `HalfNormal` with another unconstrained coordinate: its normal quantile.

    The logarithm, which NumPyro takes, has a tail that falls off only exponentially where the
    data cannot tell a scale from zero. Chains are long under way in such a tail, and a normal
    guide cannot follow it. In this coordinate the prior is a standard normal, and so are the
    tails of the posterior.
    """

    @property
    def support(self) -> Any:
        return _ScaledPositive(self.scale)


class _ScaledPositive(constraints.Constraint):
    """The positive numbers, and a unit to measure them by."""

    def __init__(self, scale: Any):
        self.scale = scale

    def __call__(self, x: Any) -> Any:
        return constraints.positive(x)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.broadcast_to(self.scale, jnp.shape(prototype))

    def tree_flatten(self) -> Any:
        return (self.scale,), (("scale",), {})

    def eq(self, other: object, static: bool = False) -> Any:
        if not isinstance(other, _ScaledPositive):
            return False
        return self.scale is other.scale if static else jnp.array_equal(self.scale, other.scale)


class HalfNormalQuantile(ParameterFreeTransform):
    """Takes a standard normal to a standard half-normal, monotonically."""

    @property
    def domain(self) -> Any:
        return constraints.real

    @property
    def codomain(self) -> Any:
        return constraints.positive

    def __call__(self, x: Any) -> Any:
        # Each tail from the probability that is small in it, which keeps its digits.
        is_low = x < 0.0
        low = math.sqrt(2.0) * erfinv(ndtr(jnp.maximum(jnp.where(is_low, x, -1.0), _LOWEST)))
        high = -ndtri(0.5 * ndtr(-jnp.where(is_low, 1.0, x)))
        return jnp.where(is_low, low, high)

    def _inverse(self, y: Any) -> Any:
        is_low = y < _MEDIAN
        low = ndtri(erf(jnp.where(is_low, y, _MEDIAN) / math.sqrt(2.0)))
        high = -ndtri(2.0 * ndtr(-jnp.where(is_low, _MEDIAN, y)))
        return jnp.where(is_low, low, high)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Array:
        return norm.logpdf(x) - norm.logpdf(y) - math.log(2.0)


@biject_to.register(_ScaledPositive)
def _from_quantile(constraint: _ScaledPositive) -> ComposeTransform:
    scaled = AffineTransform(0.0, constraint.scale, domain=constraints.positive)
    return ComposeTransform([HalfNormalQuantile(), scaled])
