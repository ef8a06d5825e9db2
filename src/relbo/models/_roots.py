"""A square root of a covariance that may be singular."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def symmetric_root(covariance: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """S with S S' = covariance, where a Cholesky factor of a singular one would be NaN.

    The units of the coordinates are taken out first, so that one with a small variance keeps
    its digits beside one with a large.
    """
    variances = jnp.diagonal(covariance)
    is_moving = variances > 0
    scale = jnp.sqrt(jnp.where(is_moving, variances, 1.0))
    return scale[:, None] * _root(covariance / jnp.outer(scale, scale))


@jax.custom_jvp
def _root(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    values, vectors = _eigen(matrix)
    return (vectors * jnp.sqrt(values)[None]) @ vectors.T


@_root.defjvp
def _root_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """From S dS + dS S = dP, in the coordinates where S is diagonal.

    The derivative of eigenvectors, which is infinite where two eigenvalues agree, is not in it.
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
    # Rounding leaves something of either sign where a zero should be.
    noise = values.shape[0] * jnp.finfo(values.dtype).eps * values[-1]
    return jnp.where(values > noise, values, 0.0), vectors


def triangle(rows: Float[Array, "r k"]) -> Float[Array, "k k"]:
    """The triangular factor R of a QR decomposition, by Householder's reflections.

    LAPACK's own would do, but it starts threads for these small matrices, which on a busy
    machine takes ten times as long as the whole filter.
    """
    size = rows.shape[1]
    index = jnp.arange(rows.shape[0])

    def reflect(columns: Array, number: Array) -> tuple[Array, None]:
        below = jnp.where(index >= number, columns[number], 0.0)
        square = jnp.sum(below**2)
        is_there = square > 0
        length = jnp.sqrt(jnp.where(is_there, square, 1.0))
        # Away from the pivot, so that nothing cancels.
        pivot = below[number]
        away = jnp.where(pivot < 0, -length, length)
        mirror = below + jnp.where(index == number, away, 0.0)
        # |mirror|^2 / 2 = |below|^2 + |pivot| |below|
        scale = jnp.where(is_there, 1.0 / (length**2 + jnp.abs(pivot) * length), 0.0)
        return columns - jnp.outer(scale * (columns @ mirror), mirror), None

    columns, _ = jax.lax.scan(reflect, rows.T, jnp.arange(size))
    return jnp.triu(columns[:, :size].T)
