"""The transforms of the bent normal, written so that they compile and run fast in a walk.

A walk differentiates the score once more, so that every elementary operation in these maps
becomes several in the compiled loop. The derivatives are therefore written by hand.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

LIMIT = 5.0
"""Beyond this many standard deviations a coordinate bends others no further."""

NUM_FEATURES = 4
"""The number of functions of a coordinate that bend others."""


class BendTransform(Transform):
    r"""Scales and shifts each coordinate by functions of those before it.

    $$v_i = u_i\, e^{\sum_{j<i} c_{ij} \cdot f(w_j)} + \sum_{j<i} d_{ij} \cdot f(w_j), \qquad
      w_j = u_j \left(1 + (u_j / 5)^4\right)^{-1/4}$$

    with $f(w) = (w, a(w + 1), a(w - 1), w^2 - 1)$ and a smooth hinge a: lines that may turn at
    two places, and parabolas. The lines are of the scales only, the parabolas of the locations
    only. They level off beyond 5, so that far away, where noise never is but steps may go, the
    map is affine. Its Jacobian is triangular. With coefficients of zero it is the identity.

    Args:
        coefficients: c and d, `[4, p, 2, d]`; only the first p coordinates bend others, and
            entries with $j \ge i$ are ignored.
    """

    domain: Any = constraints.real_vector  # type: ignore[override]
    codomain: Any = constraints.real_vector  # type: ignore[override]

    def __init__(self, coefficients: Float[Array, "4 p 2 d"]):
        _, self.num_parents, _, size = coefficients.shape
        # One matrix, made once and not in every step of a walk.
        used = coefficients * _used(self.num_parents, size, coefficients.dtype)
        self.slopes = jnp.reshape(used, (NUM_FEATURES * self.num_parents, 2 * size))

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return self.call_with_intermediates(x)[0]

    def call_with_intermediates(
        self, x: Float[Array, "*n d"]
    ) -> tuple[Float[Array, "*n d"], Float[Array, "*n d"]]:
        log_scales, shifts = self._parts(x)
        return x * jnp.exp(log_scales) + shifts, log_scales

    def log_abs_det_jacobian(
        self, x: Float[Array, "*n d"], y: Any, intermediates: Any = None
    ) -> Float[Array, "*n"]:
        log_scales = self._parts(x)[0] if intermediates is None else intermediates
        return jnp.sum(log_scales, -1)

    def _inverse(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        # A turn makes one more coordinate right; after p turns those that bend others are.
        def turn(x: Array, _: None) -> tuple[Array, None]:
            log_scales, shifts = self._parts(x)
            return (y - shifts) * jnp.exp(-log_scales), None

        return jax.lax.scan(turn, jnp.zeros_like(y), None, length=self.num_parents + 1)[0]

    def _parts(self, x: Float[Array, "*n d"]) -> tuple[Array, Array]:
        features = bend_features(x[..., : self.num_parents])
        parts = jnp.reshape(features, (*x.shape[:-1], self.slopes.shape[0])) @ self.slopes
        log_scales, shifts = jnp.split(parts, 2, -1)
        return log_scales, shifts

    def tree_flatten(self) -> Any:
        return (self.slopes,), (("slopes",), {"num_parents": self.num_parents})


def _used(num_parents: int, size: int, dtype: Any) -> Float[np.ndarray, "4 p 2 d"]:
    """Returns ones where a coefficient has an effect, and zeros elsewhere."""
    is_before = np.triu(np.ones((num_parents, size)), 1)[None, :, None]
    scales_and_shifts = np.array([[1, 0], [1, 1], [1, 1], [0, 1]])[:, None, :, None]
    return (is_before * scales_and_shifts).astype(dtype)


@jax.custom_jvp
def bend_features(x: Float[Array, "*n p"]) -> Float[Array, "*n 4 p"]:
    """Returns f(w), with w the coordinates levelled off."""
    w, _ = _levelled(x)
    hinges = (0.5 * jnp.log1p(power) for power in _powers(w))
    return jnp.stack([w, *hinges, w * w - 1.0], -2)


@jax.custom_jvp
def _feature_slopes(x: Float[Array, "*n p"]) -> Float[Array, "*n 4 p"]:
    w, slope = _levelled(x)
    hinges = (slope - slope / (1.0 + power) for power in _powers(w))
    return jnp.stack([slope, *hinges, 2.0 * w * slope], -2)


def _feature_curvatures(x: Float[Array, "*n p"]) -> Float[Array, "*n 4 p"]:
    w, slope = _levelled(x)
    third = (x / LIMIT) ** 3
    curvature = -5.0 / LIMIT * slope * third / (1.0 + third * x / LIMIT)
    square = slope * slope
    rests = (1.0 / (1.0 + power) for power in _powers(w))
    hinges = ((1.0 - rest) * (curvature + 2.0 * square * rest) for rest in rests)
    return jnp.stack([curvature, *hinges, 2.0 * (w * curvature + square)], -2)


def _powers(w: Float[Array, "*n p"]) -> tuple[Float[Array, "*n p"], ...]:
    """Returns exp(2(w + 1)) and exp(2(w - 1)); w is bounded, so that neither overflows."""
    power = jnp.exp(2.0 * w)
    return math.exp(2.0) * power, math.exp(-2.0) * power


bend_features.defjvp(
    lambda x, dx: (bend_features(*x), _feature_slopes(*x) * dx[0][..., None, :])
)
_feature_slopes.defjvp(
    lambda x, dx: (_feature_slopes(*x), _feature_curvatures(*x) * dx[0][..., None, :])
)


def _levelled(x: Float[Array, "*n p"]) -> tuple[Float[Array, "*n p"], Float[Array, "*n p"]]:
    """Returns w and its derivative."""
    inverse = 1.0 / (1.0 + jnp.square(jnp.square(x / LIMIT)))
    root = jnp.sqrt(jnp.sqrt(inverse))
    return x * root, root * inverse


class PlacedAffine(Transform):
    r"""An affine map with a triangular matrix, whose results are put in another order.

    $$z_i = (m + L v)_{r_i}$$

    with $r_i$ the rank of the i-th place. The rows are put in order once, and not the results
    in every step of a walk.

    Args:
        loc: m.
        scale_tril: L.
        place: where each entry of z stands in the order of v; only the ranks matter.
    """

    domain: Any = constraints.real_vector  # type: ignore[override]
    codomain: Any = constraints.real_vector  # type: ignore[override]

    def __init__(
        self,
        loc: Float[Array, " d"],
        scale_tril: Float[Array, "d d"],
        place: Float[Array, " d"],
    ):
        self.loc, self.scale_tril = loc, scale_tril
        # A sort takes longer to compile and to run than all comparisons.
        ranks = jnp.sum(place[None] < place[:, None], -1, keepdims=True)
        self.order = jnp.asarray(ranks == np.arange(len(place))[None], loc.dtype)
        self.placed_loc, self.placed_scale = self.order @ loc, self.order @ scale_tril

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return self.placed_loc + x @ self.placed_scale.T

    def log_abs_det_jacobian(
        self, x: Float[Array, "*n d"], y: Any, intermediates: Any = None
    ) -> Float[Array, "*n"]:
        return jnp.broadcast_to(_log_diagonal(self.scale_tril).sum(), x.shape[:-1])

    def _inverse(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        centred = y @ self.order - self.loc
        rows = jnp.reshape(centred, (-1, centred.shape[-1]))
        white = jax.scipy.linalg.solve_triangular(self.scale_tril, rows.T, lower=True)
        return jnp.reshape(white.T, centred.shape)

    def tree_flatten(self) -> Any:
        names = ("loc", "scale_tril", "order", "placed_loc", "placed_scale")
        return tuple(getattr(self, name) for name in names), (names, {})


class _Triangular(constraints._SingletonConstraint):
    """A lower Cholesky factor, learned as the logarithms of its diagonal and as its shears.

    NumPyro's own constraints pack it in a vector, and unpacking is a scatter, which is slow to
    compile. Here the unconstrained value is a matrix whose upper triangle is ignored.
    """

    event_dim = 2

    def __call__(self, x: Any) -> Any:
        return constraints.lower_cholesky(x)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.broadcast_to(jnp.eye(prototype.shape[-1]), prototype.shape)


triangular = _Triangular()


class TriangularTransform(Transform):
    r"""Maps a matrix x to $L_{ij} = e^{x_{ii}} (\delta_{ij} + x_{ij} [j < i])$."""

    domain: Any = constraints.real_matrix  # type: ignore[override]
    codomain: Any = triangular  # type: ignore[override]

    def __call__(self, x: Float[Array, "*n d d"]) -> Float[Array, "*n d d"]:
        eye = np.eye(x.shape[-1], dtype=x.dtype)
        lower = np.tril(np.ones_like(eye), -1)
        return jnp.exp(jnp.sum(x * eye, -1, keepdims=True)) * (eye + lower * x)

    def _inverse(self, y: Float[Array, "*n d d"]) -> Float[Array, "*n d d"]:
        logs = _log_diagonal(y)[..., None]
        eye = np.eye(y.shape[-1], dtype=y.dtype)
        return y * jnp.exp(-logs) - eye + eye * logs

    def log_abs_det_jacobian(
        self, x: Float[Array, "*n d d"], y: Any, intermediates: Any = None
    ) -> Float[Array, "*n"]:
        return jnp.sum(_log_diagonal(y) * np.arange(1, x.shape[-1] + 1), -1)

    def tree_flatten(self) -> Any:
        return (), ((), {})


biject_to.register(triangular)(lambda constraint: TriangularTransform())


def _log_diagonal(tril: Float[Array, "*n d d"]) -> Float[Array, "*n d"]:
    """Returns the logarithms of a matrix's diagonal, without a gather."""
    return jnp.sum(jnp.log(jnp.where(np.eye(tril.shape[-1], dtype=bool), tril, 1.0)), -1)
