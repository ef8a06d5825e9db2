"""A half-normal prior whose unconstrained coordinate is standard normal."""

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
"""The median of the standard half-normal."""
_LOWEST = -12.0
"""Below this the quantile of the standard half-normal would underflow in float32."""


class NormalScale(HalfNormal):
    """A `HalfNormal` whose unconstrained coordinate is its normal quantile.

    NumPyro uses the logarithm instead, whose posterior has an exponential tail if the data
    cannot distinguish a scale from zero. Chains mix slowly in this tail, and a normal guide
    cannot represent it. In the coordinate used here the prior is standard normal, and the
    posterior has normal tails.
    """

    @property
    def support(self) -> Any:
        return _ScaledPositive(self.scale)


class _ScaledPositive(constraints.Constraint):
    """The positive numbers, measured in units of a scale."""

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
    """Maps a standard normal variable to a standard half-normal one, monotonically."""

    @property
    def domain(self) -> Any:
        return constraints.real

    @property
    def codomain(self) -> Any:
        return constraints.positive

    def __call__(self, x: Any) -> Any:
        # Each tail is computed from its small probability, which keeps its digits.
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
