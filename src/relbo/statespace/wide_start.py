r"""Keeps an uncertain first state apart from the Kalman filter.

If the first state has a large variance compared with the noise, a plain filter loses its
digits: after a few observations some linear combinations of the states are known to within the
noise while the states themselves are not, and a float32 covariance cannot represent both.
Therefore the first state is split,

$$z_1 = m_1 + S u + w, \qquad u \sim N(0, I),$$

with a narrow $w$. The filter runs given u, where no variance is large, and carries the means of
the state as a linear function of u. Estimating u from the series is a least-squares problem,
which is solved by QR.

References:
    de Jong, The diffuse Kalman filter, 1991.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Scalar

Moments = tuple[Float[Array, " n"], Float[Array, "n n"]]
"""Mean and covariance of the state."""

StateGivenU = Float[Array, "n w"]
"""The covariance of the state given u, and to its right the means: a matrix times (1, u)."""

_NARROW_SHARE = 1e-6
"""The share of the first covariance that stays in the filter; it must not be zero, because
observations may have no noise."""


def split_start(start: Moments) -> StateGivenU:
    """Returns the first state given u."""
    mean, covariance = start
    spread = symmetric_root((1.0 - _NARROW_SHARE) * covariance)
    return jnp.concatenate([_NARROW_SHARE * covariance, mean[:, None], spread], axis=1)


def marginal(state: StateGivenU, root: Float[Array, "k k"]) -> Moments:
    """Integrates u out of a state, given the triangular factor of the observations so far."""
    num_states = state.shape[0]
    covariance, means = state[:, :num_states], state[:, num_states:]
    # S R^-1, from the transposed problem.
    spread = solve_triangular(root[:-1, :-1], means[:, 1:].T, trans="T").T
    return means[:, 0] + spread @ root[:-1, -1], covariance + spread @ spread.T


def least_squares_rows(misses: Float[Array, "*s k"]) -> Float[Array, "*s k"]:
    """Returns rows (s, -s_0) of the least-squares problem for u from standardised errors.

    An error is s_0 + s' u, so that s' u = -s_0 up to standard normal noise.
    """
    return jnp.concatenate([misses[..., 1:], -misses[..., :1]], axis=-1)


def prior_root(size: int, dtype: jnp.dtype) -> Float[Array, "k k"]:
    """Returns the triangular factor before any observation: u is standard normal."""
    return jnp.eye(size, dtype=dtype).at[-1, -1].set(0.0)


def add_rows(root: Float[Array, "k k"], rows: Float[Array, "r k"]) -> Float[Array, "k k"]:
    """Returns the triangular factor with more rows; its last entry is their residual."""
    return triangular_factor(jnp.concatenate([root, rows]))


def log_evidence(root: Float[Array, "k k"]) -> Scalar:
    """Returns log of the integral over u that a triangular factor stands for."""
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root)[:-1])))
    return -log_det - 0.5 * root[-1, -1] ** 2


@jax.custom_jvp
def log_evidence_of_rows(rows: Float[Array, "r k"]) -> Scalar:
    """Returns log of the integral over u of exp(-|rows (u, -1)|^2 / 2) times its prior."""
    return log_evidence(add_rows(prior_root(rows.shape[-1], rows.dtype), rows))


@log_evidence_of_rows.defjvp
def _log_evidence_of_rows_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    """Uses the closed form, which is far cheaper than differentiating the decomposition.

    With rows (A, b), R'R = I + A'A and the estimate v = (R'R)^-1 A'b, the gradient with respect
    to A is (b - A v) v' - A (R'R)^-1, and with respect to b it is A v - b.
    """
    (rows,), (change,) = primals, tangents
    root = add_rows(prior_root(rows.shape[-1], rows.dtype), rows)
    left, right = rows[:, :-1], rows[:, -1]
    inverse = solve_triangular(root[:-1, :-1], jnp.eye(left.shape[1], dtype=rows.dtype))
    estimate = inverse @ root[:-1, -1]
    residual = right - left @ estimate
    by_left = jnp.outer(residual, estimate) - left @ (inverse @ inverse.T)
    gradient = jnp.concatenate([by_left, -residual[:, None]], axis=1)
    return log_evidence(root), jnp.sum(gradient * change)


def triangular_factor(rows: Float[Array, "r k"]) -> Float[Array, "k k"]:
    """Returns the triangular factor R of a QR decomposition, by Householder reflections.

    LAPACK's routine starts threads for these small matrices, which on a busy machine takes ten
    times as long as the whole filter.
    """
    size = rows.shape[1]
    index = jnp.arange(rows.shape[0])

    def reflect(columns: Array, number: Array) -> tuple[Array, None]:
        below = jnp.where(index >= number, columns[number], 0.0)
        square = jnp.sum(below**2)
        is_nonzero = square > 0
        length = jnp.sqrt(jnp.where(is_nonzero, square, 1.0))
        pivot = below[number]
        # With the sign of the pivot, so that nothing cancels.
        signed_length = jnp.where(pivot < 0, -length, length)
        mirror = below + jnp.where(index == number, signed_length, 0.0)
        # |mirror|^2 / 2 = |below|^2 + |pivot| |below|
        scale = jnp.where(is_nonzero, 1.0 / (length**2 + jnp.abs(pivot) * length), 0.0)
        return columns - jnp.outer(scale * (columns @ mirror), mirror), None

    columns, _ = jax.lax.scan(reflect, rows.T, jnp.arange(size))
    return jnp.triu(columns[:, :size].T)


def symmetric_root(covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Returns S with S S' = covariance, also where the covariance is singular.

    A Cholesky factor of a singular covariance would be NaN. The coordinates are scaled to unit
    variance first, so that one with a small variance keeps its digits beside one with a large
    variance.
    """
    variances = jnp.diagonal(covariance)
    scale = jnp.sqrt(jnp.where(variances > 0, variances, 1.0))
    return scale[:, None] * _root(covariance / jnp.outer(scale, scale))


@jax.custom_jvp
def _root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    values, vectors = _eigen(matrix)
    return (vectors * jnp.sqrt(values)[None]) @ vectors.T


@_root.defjvp
def _root_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Solves S dS + dS S = dP in the coordinates where S is diagonal.

    This avoids the derivative of eigenvectors, which is infinite where two eigenvalues agree.
    """
    (matrix,), (change,) = primals, tangents
    values, vectors = _eigen(matrix)
    roots = jnp.sqrt(values)
    total = roots[:, None] + roots[None]
    inner = vectors.T @ change @ vectors
    inner = jnp.where(total > 0, inner / jnp.where(total > 0, total, 1.0), 0.0)
    return (vectors * roots[None]) @ vectors.T, vectors @ inner @ vectors.T


def _eigen(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    values, vectors = jnp.linalg.eigh(matrix)
    # Rounding turns zero eigenvalues into small numbers of either sign.
    noise = values.shape[0] * jnp.finfo(values.dtype).eps * values[-1]
    return jnp.where(values > noise, values, 0.0), vectors
