"""A matrix product that stays one, however many axes of points it is vectorised over."""

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

    Over draws of images JAX keeps both axes, and the gradient of the weights sums over two.
    XLA then transposes the larger factor in memory before it multiplies, which takes half as
    long again. Here the axes of `vmap` are joined as they come, so that all factors are plain
    matrices, those of derivatives of any order too.
    """
    dtype = jnp.result_type(point, weights)
    return _product.bind(point[None].astype(dtype), weights.astype(dtype))[0]


_product = Primitive("relbo_product")
"""Of points `[n, in]` and weights `[in, out]`."""


def _multiply(points: Array, weights: Array) -> Array:
    return jax.lax.dot(points, weights)


def _vectorise(args: tuple[Array, Array], axes: tuple[int | None, ...]) -> tuple[Array, int]:
    (points, weights), (axis, weights_axis) = args, axes
    if axis is None or weights_axis is not None:
        return jax.vmap(_multiply, axes)(points, weights), 0
    points = jnp.moveaxis(points, axis, 0)
    joined = points.reshape(-1, points.shape[-1])
    return _product.bind(joined, weights).reshape(*points.shape[:2], -1), 0


def _transpose(cotangent: Any, points: Any, weights: Any) -> tuple[Any, Any]:
    if isinstance(cotangent, ad.Zero):
        return None, None
    if ad.is_undefined_primal(points):
        return _product.bind(cotangent, weights.T), None
    return None, _multiply(points.T, cotangent)


_product.def_impl(_multiply)
_product.def_abstract_eval(
    lambda points, weights: points.update(shape=(points.shape[0], weights.shape[1]))
)
mlir.register_lowering(_product, mlir.lower_fun(_multiply, multiple_results=False))
batching.primitive_batchers[_product] = _vectorise
ad.defjvp(
    _product,
    lambda tangent, points, weights: _product.bind(tangent, weights),
    lambda tangent, points, weights: _product.bind(points, tangent),
)
ad.primitive_transposes[_product] = _transpose
