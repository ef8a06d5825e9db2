"""Stein particles: K of them move together, with and without noise."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.core.bases import LOG_2PI
from relbo.core.kernels.contract import (
    AbstractDeterministicKernel,
    AbstractOneGradientKernel,
    Arrival,
    Departure,
    Position,
    Randomness,
)
from relbo.core.kernels.rbf import optional_bandwidth, rbf
from relbo.core.parameters import Positive, as_step_size


class SVGD(AbstractDeterministicKernel):
    r"""Stein variational gradient descent (ascent on the log density, here).

    $$z_i' = z_i + \frac{\eta}{K} \sum_j \left[ k(z_j, z_i)\, g(z_j)
      + \nabla_{z_j} k(z_j, z_i) \right]$$

    Args:
        step_size: $\eta$; as for `SGD`.
        bandwidth: the learned bandwidth of the radial kernel $k$; `None` for the median
            heuristic, which depends on the particles.

    References:
        Liu and Wang, Stein variational gradient descent, 2016.
    """

    step_size: Positive = eqx.field(default=0.1, converter=as_step_size)
    bandwidth: Positive | None = eqx.field(
        default=None, converter=optional_bandwidth, kw_only=True
    )
    interacting: ClassVar[bool] = True

    def drift(self, position: Position, score: Position) -> Position:
        gram, gram_grad = rbf(position, self.bandwidth)
        return stein_drift(gram, gram_grad, score)


class SGLDR(AbstractOneGradientKernel):
    r"""Stochastic SVGD: Langevin dynamics whose particles repel each other.

    The drift of `SVGD` plus noise that is correlated across particles, with the covariance
    $\frac{2\eta}{K}\, k(z_i, z_j)$ in every coordinate.

    Args:
        step_size: $\eta$; as for `SGD`.
        bandwidth: as for `SVGD`.

    References:
        Gallego and Rios Insua, Stochastic gradient MCMC with repulsive forces, 2018.
    """

    step_size: Positive = eqx.field(default=0.1, converter=as_step_size)
    bandwidth: Positive | None = eqx.field(
        default=None, converter=optional_bandwidth, kw_only=True
    )
    randomness: ClassVar[Randomness] = "position"
    interacting: ClassVar[bool] = True

    @property
    def reversible(self) -> bool:
        return True

    def init(self, noise: Position, position: Position) -> PyTree:
        return jnp.zeros_like(position)  # the last move

    def depart(
        self, noise: Position, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        mean, root = self._move(position, score)
        variance = self._variance(position)
        move = mean + jnp.sqrt(variance) * (root @ noise)
        log_forward = _correlated_logdensity(noise, root, variance)
        return Departure(position + move, move, log_forward)

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        mean, root = self._move(position, score)
        variance = self._variance(position)
        standardised = (-memory - mean) / jnp.sqrt(variance)
        noise = jax.scipy.linalg.solve_triangular(root, standardised, lower=True)
        return Arrival(memory, _correlated_logdensity(noise, root, variance))

    def _move(
        self, position: Position, score: Position
    ) -> tuple[Float[Array, "k d"], Float[Array, "k k"]]:
        """Returns the mean of a move and a root of its correlation across particles."""
        gram, gram_grad = rbf(position, self.bandwidth)
        mean = self.step_size.value * stein_drift(gram, gram_grad, score)
        # Particles at the same point make the matrix singular. The jitter is part of the
        # kernel's definition, forwards and backwards, so a bound stays a bound.
        jitter = 1e-4 * jnp.eye(gram.shape[0], dtype=gram.dtype)
        return mean, jnp.linalg.cholesky(gram + jitter)

    def _variance(self, position: Position) -> Float[Array, "1 d"]:
        num_particles, dimension = position.shape
        return jnp.broadcast_to(2 * self.step_size.value / num_particles, (1, dimension))


def stein_drift(
    gram: Float[Array, "k k"], gram_grad: Float[Array, "k k d"], score: Float[Array, "k d"]
) -> Float[Array, "k d"]:
    """Computes phi(z_i) = 1/K sum_j [ k(z_j, z_i) g(z_j) + grad_{z_j} k(z_j, z_i) ]."""
    return (gram @ score + gram_grad.sum(axis=0)) / gram.shape[0]


def _correlated_logdensity(
    noise: Float[Array, "k d"], root: Float[Array, "k k"], variance: Float[Array, "1 d"]
) -> Scalar:
    num_particles, dimension = noise.shape
    log_root = dimension * jnp.sum(jnp.log(jnp.diagonal(root)))
    log_variance = num_particles * jnp.sum(jnp.log(variance))
    return -0.5 * jnp.sum(jnp.square(noise) + LOG_2PI) - log_root - 0.5 * log_variance
