"""Maps from white coordinates, in which a posterior is close to N(0, I), and back."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from relbo.core.bases import AbstractNormal, DiagonalNormal, MultivariateNormal
from relbo.gaussian import factors
from relbo.gaussian.factors import Factor, LowRankFactor

MAX_PARENTS = 8
"""The largest number of coordinates that others depend on."""
NARROWING = 1.4
"""A change of a log scale along a parent that makes a narrow place."""
REACH = 0.01
"""The share of draws on either side that are beyond the range of a parent."""


class Dependence(NamedTuple):
    r"""How scales and locations depend on a few coordinates, the parents.

    With $w$ the parents' values among the white coordinates $u$,

    $$v = u\, e^{C f(w)} + D h(w).$$

    The rows of parents are zero, so that the map is triangular: its inverse is explicit and its
    log determinant is the sum of $C f(w)$. The first term straightens funnels, the second
    bananas.
    """

    parents: Int[np.ndarray, " p"] | Int[Array, " p"]
    log_scale: Float[np.ndarray, "d f"] | Float[Array, "d f"]
    """C: how the logarithm of each scale changes with `scale_features` of the parents."""
    curve: Float[np.ndarray, "d h"] | Float[Array, "d h"]
    """D: how each location changes with `curve_features` of the parents."""

    @classmethod
    def none(cls, size: int) -> "Dependence":
        """Returns the identity."""
        parents = np.zeros(min(size, MAX_PARENTS), np.int32)
        zeros = np.zeros((size, 3 * len(parents)))
        return cls(parents, zeros, zeros)

    def bend(self, white: Any) -> tuple[Any, Any]:
        """Returns v and the log determinant for white coordinates along the last axis."""
        log_scales, shifts = self._parts(white)
        exp = white.__array_namespace__().exp
        return white * exp(log_scales) + shifts, log_scales.sum(-1)

    def straighten(self, bent: np.ndarray) -> np.ndarray:
        """Returns the white coordinates: the inverse of `bend`."""
        log_scales, shifts = self._parts(bent)
        return (bent - shifts) * np.exp(-log_scales)

    def straight_score(
        self, white: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d"]:
        """Returns the score in v of a density, given the score in u with the Jacobian."""
        log_scales, _ = self._parts(white)
        straight = score * np.exp(-log_scales)
        by_scale = (score * white + 1.0) @ self.log_scale
        by_curve = straight @ self.curve
        values = white[:, self.parents]
        number = len(self.parents)
        steps = [_hinge_slope(values + 1.0), _hinge_slope(values - 1.0)]
        slopes = sum(
            part[:, k * number : (k + 1) * number] * slope
            for part, features in (
                (by_scale, (np.ones_like(values), *steps)),
                (by_curve, (*steps, 2 * values)),
            )
            for k, slope in enumerate(features)
        )
        # Unused entries of `parents` repeat the first coordinate, with slopes of zero.
        return straight - slopes @ np.eye(white.shape[1])[self.parents]

    def largest_change(
        self, low: Float[np.ndarray, " d"], high: Float[np.ndarray, " d"]
    ) -> float:
        """Returns how much a log scale or a slope of a location changes along one parent.

        Args:
            low, high: where the parents' range begins and ends, in white coordinates.
        """
        size = self.curve.shape[0]
        ends = np.eye(size)[np.asarray(self.parents)]
        scales = [self._parts(values * ends)[0] for values in (low, high)]
        (_, left), (_, middle), (_, right) = (self._parts(k * ends) for k in (-2.0, 0.0, 2.0))
        bends = 0.5 * (left + right) - middle
        return float(max(np.max(np.abs(scales[1] - scales[0])), np.max(np.abs(bends))))

    def _parts(self, values: Any) -> tuple[Any, Any]:
        parents = values[..., self.parents]
        log_scales = scale_features(parents) @ self.log_scale.T
        return log_scales, curve_features(parents) @ self.curve.T


def scale_features(parents: Any) -> Any:
    """Returns w and two smooth hinges: a log scale may level off at either side."""
    concat = parents.__array_namespace__().concat
    return concat([parents, _hinge(parents + 1.0), _hinge(parents - 1.0)], axis=-1)


def curve_features(parents: Any) -> Any:
    """Returns two smooth hinges and w^2 - 1."""
    concat = parents.__array_namespace__().concat
    return concat([_hinge(parents + 1.0), _hinge(parents - 1.0), parents**2 - 1.0], axis=-1)


def _hinge(value: Any) -> Any:
    """Returns a smooth version of max(value, 0)."""
    namespace = value.__array_namespace__()
    return 0.5 * namespace.logaddexp(2.0 * value, namespace.zeros_like(value))


def _hinge_slope(value: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(value))


class WhiteningNormal(NamedTuple):
    """A normal z = loc + factor v; the factor is a matrix, a diagonal or `LowRankFactor`.

    With a `dependence` v is a bent version of the white coordinates u; otherwise v = u.
    """

    loc: Float[np.ndarray, " d"]
    factor: Factor
    dependence: Dependence | None = None

    @property
    def is_dense(self) -> bool:
        return not isinstance(self.factor, LowRankFactor) and self.factor.ndim == 2

    @property
    def log_det(self) -> float:
        """The log determinant of the factor; that of the dependence belongs to the density."""
        return factors.log_det(self.factor)

    @property
    def parents(self) -> list[int]:
        """The coordinates that others depend on."""
        if self.dependence is None:
            return []
        parents = np.asarray(self.dependence.parents)
        slopes = np.concatenate([self.dependence.log_scale, self.dependence.curve])
        used = np.any(slopes.reshape(len(slopes), 3, -1) != 0, (0, 1))
        return [int(parent) for parent in parents[used]]

    def has_narrow_places(self, points: Float[np.ndarray, "n d"]) -> bool:
        """Whether some scales change strongly over the range of the draws."""
        if self.dependence is None:
            return False
        low, high = np.quantile(self.pull(points), [REACH, 1 - REACH], 0)
        return self.dependence.largest_change(low, high) > NARROWING

    def push(self, white: np.ndarray) -> np.ndarray:
        # Points that diverged may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            if self.dependence is not None:
                white, _ = self.dependence.bend(white)
            return self.loc + factors.times(self.factor, white)

    def pull(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        with np.errstate(over="ignore", invalid="ignore"):
            straight = factors.solve(self.factor, points - self.loc)
            return straight if self.dependence is None else self.dependence.straighten(straight)

    def score(
        self, white: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d"]:
        """Returns the score in z of a density, given its score in white coordinates."""
        if self.dependence is not None:
            score = self.dependence.straight_score(white, score)
        return factors.solve_transposed(self.factor, score)

    def pulled_score(self, score: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Returns the score in v of a density, given its score in z."""
        return factors.times_transposed(self.factor, score)

    def moved(self, shift: Float[np.ndarray, " d"], by: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of loc + factor (shift + by u'), with the same dependence.

        The factor is a matrix or diagonal, and `by` is of the same kind.
        """
        assert not isinstance(self.factor, LowRankFactor)
        factor = self.factor @ by if self.is_dense else self.factor * by
        loc = self.loc + factors.times(self.factor, shift)
        return WhiteningNormal(loc, factor, self.dependence)

    def rescaled(
        self, loc: Float[np.ndarray, " d"], scale: Float[np.ndarray, " d"]
    ) -> "WhiteningNormal":
        """Returns the distribution of loc + scale z."""
        factor = factors.rescaled(self.factor, scale)
        return WhiteningNormal(loc + scale * self.loc, factor, self.dependence)

    def conditional_sd(self) -> Float[np.ndarray, " d"]:
        """Returns the standard deviation of each coordinate given all others.

        It is the scale of the best mean-field normal.
        """
        if factors.is_diagonal(self.factor):
            return np.abs(np.asarray(self.factor))
        return 1.0 / np.linalg.norm(np.linalg.inv(factors.as_matrix(self.factor)), axis=0)

    def scale_tril(self) -> Float[np.ndarray, "d d"]:
        """Returns the lower Cholesky factor of the covariance."""
        if factors.is_diagonal(self.factor):
            return np.diag(np.abs(np.asarray(self.factor)))
        # By QR, since forming the covariance would square the condition number.
        upper = np.asarray(np.linalg.qr(factors.as_matrix(self.factor).T, mode="r"))
        return upper.T * np.sign(np.diagonal(upper))

    def to_base(self) -> AbstractNormal:
        """Returns the same normal as a base of a refinement, in JAX's precision."""
        loc = jnp.asarray(self.loc)
        if factors.is_diagonal(self.factor):
            return DiagonalNormal(loc, jnp.asarray(np.abs(np.asarray(self.factor))))
        return MultivariateNormal(loc, jnp.asarray(self.scale_tril()))

    def reordered(self, order: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of the coordinates in another order."""
        factor = self.factor
        if isinstance(factor, LowRankFactor):
            rows = LowRankFactor(factor.scale[order], factor.axes[order], factor.stretch)
            return WhiteningNormal(self.loc[order], rows)
        return WhiteningNormal(self.loc[order], factor[order])
