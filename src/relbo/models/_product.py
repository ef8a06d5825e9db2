"""A product with shared weights, whose gradient is a product of two plain matrices."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float


def product(
    point: Float[Array, " in"], weights: Float[Array, "in out"]
) -> Float[Array, " out"]:
    """`point @ weights`, for many points and weights that they share.

    Over draws of images the gradient of the weights is a sum over two axes. As JAX writes it,
    XLA transposes the larger factor in memory before it multiplies, which takes half as long
    again. Here the axes are joined first, in derivatives of any order. Only on one device:
    an axis that is spread over several would have to be gathered.
    """
    dtype = jnp.result_type(point, weights)
    return _product.bind(point.astype(dtype), weights.astype(dtype))


_product = Primitive("relbo_product")
"""Of points `[..., in]` and weights `[in, out]`."""
_summed = Primitive("relbo_summed_product")
"""Of points `[..., in]` and `[..., out]`: the sum of their outer products."""


def _multiply(points: Array, weights: Array) -> Array:
    return jnp.matmul(points, weights)


def _sum(points: Array, others: Array, *, is_joined: bool = True) -> Array:
    if is_joined:
        join = lambda array: array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
        return join(points).T @ join(others)
    axes = tuple(range(points.ndim - 1))
    return jnp.tensordot(points, others, (axes, axes))


def _lower_sum(ctx: mlir.LoweringRuleContext, *operands: Any) -> Any:
    number = getattr(ctx.module_context.axis_context, "num_devices", None)
    lower = mlir.lower_fun(partial(_sum, is_joined=number == 1), multiple_results=False)
    return lower(ctx, *operands)


def _vectorise_product(args: tuple, axes: tuple) -> tuple[Array, int]:
    (points, weights), (axis, weights_axis) = args, axes
    if axis is None or weights_axis is not None:
        return jax.vmap(_multiply, axes)(points, weights), 0
    return _product.bind(jnp.moveaxis(points, axis, 0), weights), 0


def _vectorise_sum(args: tuple, axes: tuple) -> tuple[Array, int]:
    return jax.vmap(partial(_sum, is_joined=False), axes)(*args), 0


_product.def_impl(_multiply)
_product.def_abstract_eval(
    lambda points, weights: points.update(shape=(*points.shape[:-1], weights.shape[1]))
)
mlir.register_lowering(_product, mlir.lower_fun(_multiply, multiple_results=False))
batching.primitive_batchers[_product] = _vectorise_product
ad.defbilinear(
    _product,
    lambda cotangent, points, weights: _product.bind(cotangent, weights.T),
    lambda cotangent, points, weights: _summed.bind(points, cotangent),
)

_summed.def_impl(_sum)
_summed.def_abstract_eval(
    lambda points, others: points.update(shape=(points.shape[-1], others.shape[-1]))
)
mlir.register_lowering(_summed, _lower_sum)
batching.primitive_batchers[_summed] = _vectorise_sum
ad.defbilinear(
    _summed,
    lambda cotangent, points, others: _product.bind(others, cotangent.T),
    lambda cotangent, points, others: _product.bind(points, cotangent),
)
