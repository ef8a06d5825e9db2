"""Maps from white coordinates, in which a posterior is close to N(0, I), and back."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from relbo.core.bases import AbstractNormal, DiagonalNormal, MultivariateNormal

MAX_PARENTS = 8
"""The largest number of coordinates that others depend on."""


class Dependence(NamedTuple):
    r"""How scales and locations depend on a few coordinates, the parents.

    With $w$ the parents' values among the white coordinates $u$,

    $$v = u\, e^{C w} + D (w^2 - 1).$$

    The rows of parents are zero, so that the map is triangular: its inverse is explicit and its
    log determinant is the sum of $C w$. The first term is a funnel, the second a banana.
    """

    parents: Int[np.ndarray, " p"] | Int[Array, " p"]
    log_scale: Float[np.ndarray, "d p"] | Float[Array, "d p"]
    """C: how the logarithm of each scale changes with the parents."""
    curve: Float[np.ndarray, "d p"] | Float[Array, "d p"]
    """D: how each location changes with the squares of the parents."""

    @classmethod
    def none(cls, size: int) -> "Dependence":
        """Returns the identity."""
        number = min(size, MAX_PARENTS)
        zeros = np.zeros((size, number))
        return cls(np.zeros(number, np.int32), zeros, zeros)

    def bend(self, white: Any) -> tuple[Any, Any]:
        """Returns v and the log determinant for white coordinates along the last axis."""
        values, log_scales, shifts = self._parts(white)
        exp = white.__array_namespace__().exp
        return values * exp(log_scales) + shifts, log_scales.sum(-1)

    def straighten(self, bent: np.ndarray) -> np.ndarray:
        """Returns the white coordinates: the inverse of `bend`."""
        values, log_scales, shifts = self._parts(bent)
        return (values - shifts) * np.exp(-log_scales)

    def straight_score(
        self, white: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d"]:
        """Returns the score in v of a density, given its score in u, both without Jacobians."""
        _, log_scales, _ = self._parts(white)
        straight = score * np.exp(-log_scales)
        slopes = (score * white) @ self.log_scale
        slopes += 2 * white[:, self.parents] * (straight @ self.curve)
        np.subtract.at(straight, (slice(None), self.parents), slopes)
        return straight

    def _parts(self, values: Any) -> tuple[Any, Any, Any]:
        parents = values[..., self.parents]
        return values, parents @ self.log_scale.T, (parents**2 - 1.0) @ self.curve.T


class WhiteningNormal(NamedTuple):
    """A normal z = loc + factor v; the factor is a matrix, or a vector if it is diagonal.

    With a `dependence` v is a bent version of the white coordinates u; otherwise v = u.
    """

    loc: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]
    dependence: Dependence | None = None

    @property
    def is_dense(self) -> bool:
        return self.factor.ndim == 2

    @property
    def log_det(self) -> float:
        """The log determinant of the factor; that of the dependence belongs to the density."""
        if self.is_dense:
            return float(np.linalg.slogdet(self.factor)[1])
        return float(np.sum(np.log(np.abs(self.factor))))

    @property
    def parents(self) -> list[int]:
        """The coordinates that others depend on."""
        if self.dependence is None:
            return []
        used = np.any(self.dependence.log_scale != 0, 0) | np.any(self.dependence.curve != 0, 0)
        return [int(parent) for parent in np.asarray(self.dependence.parents)[used]]

    def push(self, white: np.ndarray) -> np.ndarray:
        if self.dependence is not None:
            white, _ = self.dependence.bend(white)
        return self.loc + self._times(white)

    def pull(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        centred = points - self.loc
        if self.is_dense:
            straight = np.linalg.solve(self.factor, centred.T).T
        else:
            straight = centred / self.factor
        return straight if self.dependence is None else self.dependence.straighten(straight)

    def score(
        self, white: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d"]:
        """Returns the score in z of a density, given its score in white coordinates."""
        if self.dependence is not None:
            slopes = self.dependence.log_scale.sum(0)
            score = score.copy()
            np.subtract.at(score, (slice(None), self.dependence.parents), slopes)
            score = self.dependence.straight_score(white, score)
        if self.is_dense:
            return np.linalg.solve(self.factor.T, score.T).T
        return score / self.factor

    def pulled_score(self, score: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Returns the score in v of a density, given its score in z."""
        return score @ self.factor if self.is_dense else score * self.factor

    def moved(self, shift: Float[np.ndarray, " d"], by: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of loc + factor (shift + by u'), with the same dependence."""
        factor = self.factor @ by if self.is_dense else self.factor * by
        return WhiteningNormal(self.loc + self._times(shift), factor, self.dependence)

    def rescaled(
        self, loc: Float[np.ndarray, " d"], scale: Float[np.ndarray, " d"]
    ) -> "WhiteningNormal":
        """Returns the distribution of loc + scale z."""
        factor = scale[:, None] * self.factor if self.is_dense else scale * self.factor
        return WhiteningNormal(loc + scale * self.loc, factor, self.dependence)

    def conditional_sd(self) -> Float[np.ndarray, " d"]:
        """Returns the standard deviation of each coordinate given all others.

        It is the scale of the best mean-field normal.
        """
        if not self.is_dense:
            return np.abs(self.factor)
        return 1.0 / np.linalg.norm(np.linalg.inv(self.factor), axis=0)

    def scale_tril(self) -> Float[np.ndarray, "d d"]:
        """Returns the lower Cholesky factor of the covariance."""
        if not self.is_dense:
            return np.diag(np.abs(self.factor))
        # By QR, since forming the covariance would square the condition number.
        upper = np.asarray(np.linalg.qr(self.factor.T, mode="r"))
        return upper.T * np.sign(np.diagonal(upper))

    def to_base(self) -> AbstractNormal:
        """Returns the same normal as a base of a refinement, in JAX's precision."""
        loc = jnp.asarray(self.loc)
        if self.is_dense:
            return MultivariateNormal(loc, jnp.asarray(self.scale_tril()))
        return DiagonalNormal(loc, jnp.asarray(np.abs(self.factor)))

    def reordered(self, order: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of the coordinates in another order."""
        return WhiteningNormal(self.loc[order], self.factor[order])

    def _times(self, white: np.ndarray) -> np.ndarray:
        return white @ self.factor.T if self.is_dense else white * self.factor
