"""Base densities q0, reparameterised: where a refinement starts."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Scalar

from relbo.core.checks import check_shape
from relbo.core.parameters import Positive
from relbo.core.random import KeyLike, as_key

LOG_2PI = 1.8378770664093453


def zero_like(tree: PyTree) -> Scalar:
    """Returns a zero in the precision of `tree`."""
    return jnp.zeros((), jnp.result_type(*jax.tree.leaves(tree)))


def standard_normal_logdensity(tree: PyTree) -> Scalar:
    """Returns the log density of independent standard normals at `tree`."""
    return zero_like(tree) + sum(
        -0.5 * jnp.sum(jnp.square(leaf) + LOG_2PI) for leaf in jax.tree.leaves(tree)
    )


def standard_normal_like(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """Draws independent standard normals in the shape of `tree`."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jr.normal(key, flat.shape, flat.dtype))


class AbstractBase(eqx.Module):
    """A density to start from: it draws z0 and computes log q0(z0)."""

    has_density: eqx.AbstractClassVar[bool]
    """Whether q0 has a density: a point has none, and its objective is not a bound."""

    @property
    @abstractmethod
    def centre(self) -> PyTree:
        """The mean of a Gaussian, the image of u = 0 of a flow, the point of a Dirac."""

    @abstractmethod
    def sample(self, key: KeyLike) -> tuple[PyTree, Scalar]:
        """Draws z and returns it with log q0(z)."""

    @abstractmethod
    def log_prob(self, position: PyTree) -> Scalar:
        """Computes log q0 at any position (an annealed path needs it away from the draws)."""


class AbstractNormal(AbstractBase):
    """A base that is standard normal in its whitened coordinates u, with z = transform(u)."""

    has_density: ClassVar[bool] = True

    noise: eqx.AbstractVar[PyTree]
    """Any pytree of arrays in the shape of u; its values do not matter."""

    @abstractmethod
    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        """Maps u to (z, log abs det dz/du)."""

    @property
    def centre(self) -> PyTree:
        return self.transform(jax.tree.map(jnp.zeros_like, self.noise))[0]

    def sample(self, key: KeyLike) -> tuple[PyTree, Scalar]:
        noise = standard_normal_like(as_key(key), self.noise)
        position, log_det = self.transform(noise)
        return position, standard_normal_logdensity(noise) - log_det


class StandardNormal(AbstractNormal):
    """N(0, I) in the shape of `noise`; every whitened base is this one."""

    noise: PyTree

    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        return noise, zero_like(noise)

    def log_prob(self, position: PyTree) -> Scalar:
        return standard_normal_logdensity(position)


class DiagonalNormal(AbstractNormal):
    """Independent normals, one for each coordinate of a pytree.

    Args:
        loc: the means, any pytree of arrays.
        scale: the standard deviations, a number or a pytree like `loc`.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> z, log_q = DiagonalNormal(jnp.zeros(3), 0.1).sample(jr.key(0))
        >>> z.shape
        (3,)
    """

    loc: PyTree
    scale: Positive

    def __init__(self, loc: PyTree, scale: PyTree = 1.0):
        self.loc = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.result_type(float, leaf)), loc
        )
        if (
            jax.tree.structure(scale).num_leaves == 1
            and jnp.ndim(jax.tree.leaves(scale)[0]) == 0
        ):
            number = jax.tree.leaves(scale)[0]
            scale = jax.tree.map(lambda leaf: jnp.full_like(leaf, number), self.loc)
        if jax.tree.map(jnp.shape, scale) != jax.tree.map(jnp.shape, self.loc):
            raise ValueError(
                "DiagonalNormal(loc, scale): scale must be a number or have the structure and "
                f"shapes of loc, got {jax.tree.map(jnp.shape, scale)} for "
                f"{jax.tree.map(jnp.shape, self.loc)}"
            )
        self.scale = Positive(scale, name="scale")

    @property
    def noise(self) -> PyTree:
        return self.loc

    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        position = jax.tree.map(lambda m, s, u: m + s * u, self.loc, self.scale.value, noise)
        return position, self._log_det

    def whiten(self, position: PyTree) -> PyTree:
        """Maps z back to u."""
        return jax.tree.map(lambda z, m, s: (z - m) / s, position, self.loc, self.scale.value)

    def log_prob(self, position: PyTree) -> Scalar:
        return standard_normal_logdensity(self.whiten(position)) - self._log_det

    @property
    def _log_det(self) -> Scalar:
        # The scale's leaf is its logarithm already.
        raw = self.scale.raw
        return zero_like(raw) + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(raw))


class MultivariateNormal(AbstractNormal):
    """A normal with a full covariance on a vector.

    Args:
        loc: the mean.
        scale_tril: a lower Cholesky factor of the covariance; its diagonal stays positive.
    """

    loc: Float[Array, " d"]
    scale_diagonal: Positive
    scale_lower: Float[Array, "d d"]

    def __init__(self, loc: ArrayLike, scale_tril: ArrayLike | None = None):
        self.loc = jnp.asarray(loc, jnp.result_type(float, loc))
        check_shape("loc", self.loc, "d")
        eye = jnp.eye(self.loc.shape[0], dtype=self.loc.dtype)
        scale_tril = eye if scale_tril is None else jnp.asarray(scale_tril)
        check_shape("scale_tril", scale_tril, *eye.shape)
        self.scale_diagonal = Positive(jnp.diagonal(scale_tril), name="scale_tril's diagonal")
        self.scale_lower = jnp.tril(scale_tril, -1)

    @property
    def scale_tril(self) -> Float[Array, "d d"]:
        return jnp.tril(self.scale_lower, -1) + jnp.diag(self.scale_diagonal.value)

    @property
    def noise(self) -> PyTree:
        return self.loc

    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        return self.loc + self.scale_tril @ noise, jnp.sum(self.scale_diagonal.raw)

    def whiten(self, position: PyTree) -> PyTree:
        """Maps z back to u."""
        return jax.scipy.linalg.solve_triangular(
            self.scale_tril, position - self.loc, lower=True
        )

    def log_prob(self, position: PyTree) -> Scalar:
        noise = self.whiten(position)
        return standard_normal_logdensity(noise) - jnp.sum(self.scale_diagonal.raw)


class TransformedNormal(AbstractNormal):
    """Standard normal noise pushed through any differentiable one-to-one map.

    Args:
        transform_fn: maps u to (z, log abs det dz/du).
        noise: any pytree in the shape of u.

    Its density away from its own draws would need the inverse, so an annealed path from it must
    run in whitened coordinates.
    """

    transform_fn: Callable[[PyTree], tuple[PyTree, Scalar]]
    noise: PyTree

    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        return self.transform_fn(noise)

    def log_prob(self, position: PyTree) -> Scalar:
        raise ValueError(
            "TransformedNormal has no density away from its own draws: for an annealed path "
            'from it use space="whitened", otherwise anneal=False'
        )


class Dirac(AbstractBase):
    """A point mass: refining it is optimisation (a MAP estimate), and its objective no bound.

    It has no scale, so its whitened coordinates are the position itself.

    Args:
        loc: the point, any pytree of arrays.
    """

    loc: PyTree
    has_density: ClassVar[bool] = False

    @property
    def centre(self) -> PyTree:
        return self.loc

    def sample(self, key: KeyLike) -> tuple[PyTree, Scalar]:
        return self.loc, zero_like(self.loc)

    def log_prob(self, position: PyTree) -> Scalar:
        raise ValueError("Dirac has no density: an annealed path cannot start from it")
