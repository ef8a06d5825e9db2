"""Hamiltonian moves: a position and its momentum."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.core.bases import standard_normal_logdensity
from relbo.core.checks import check_integer
from relbo.core.dynamics import end_leapfrog, refresh, start_leapfrog
from relbo.core.kernels.contract import AbstractKernel, Arrival, Departure, Position, Randomness
from relbo.core.parameters import Positive, as_step_size


class Underdamped(AbstractKernel):
    r"""Leapfrog steps with partial refreshment of the momentum.

    $$\rho \leftarrow \gamma \rho + \sqrt{1-\gamma^2}\, \xi, \quad
      \rho \leftarrow \rho + \tfrac{\epsilon}{2} g(z), \quad
      z \leftarrow z + \epsilon \rho, \quad
      \rho \leftarrow \rho + \tfrac{\epsilon}{2} g(z)$$

    With `damping=0` and several leapfrogs this is an unadjusted HMC move; with one leapfrog it
    is `SGLD` with step size $\epsilon^2/2$. A metric in the coordinates of the position is the
    same as one step size per coordinate: the momentum stays standard normal, and
    $\epsilon_i = \epsilon \sqrt{G_i}$.

    Args:
        step_size: $\epsilon$; a number, one number per coordinate, or either inside `PerStep`.
        damping: $\gamma$ in [0, 1): the share of the momentum that a refreshment keeps; may be
            `PerStep`. Zero means full refreshment and is not learned.
        metric: $G$, the inverse mass, one positive number per coordinate; `None` for ones.
        num_leapfrogs: number of leapfrogs between two refreshments.

    Example:
        >>> kernel = Underdamped(step_size=0.1, damping=0.9)

    References:
        Neal, MCMC using Hamiltonian dynamics, 2011; Geffner and Domke, MCMC variational
        inference via uncorrected Hamiltonian annealing, 2021.
    """

    step_size: Positive
    damping: Positive | None
    metric: Positive | None
    num_leapfrogs: int = eqx.field(static=True)
    randomness: ClassVar[Randomness] = "momentum"
    interacting: ClassVar[bool] = False

    def __init__(
        self,
        step_size: Any = 0.1,
        damping: Any = 0.9,
        *,
        metric: Any = None,
        num_leapfrogs: int = 1,
    ):
        check_integer("num_leapfrogs", num_leapfrogs, 1)
        is_zero = isinstance(damping, int | float) and damping == 0
        self.step_size = as_step_size(step_size)
        self.damping = None if is_zero else Positive.of(damping, upper=1.0, name="damping")
        self.metric = None if metric is None else Positive.of(metric, name="metric")
        self.num_leapfrogs = num_leapfrogs

    @property
    def reversible(self) -> bool:
        return True

    @property
    def evaluations_per_step(self) -> int:
        return self.num_leapfrogs

    def init(self, noise: Position, position: Position) -> PyTree:
        return noise, jnp.zeros((), jnp.int32)

    def depart(
        self, noise: Position, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        momentum, leapfrogs = memory
        damping = self.damping
        fresh = noise if damping is None else refresh(momentum, noise, damping.value)
        log_forward = standard_normal_logdensity(fresh)
        if self.num_leapfrogs > 1:
            starts = leapfrogs % self.num_leapfrogs == 0
            fresh = jnp.where(starts, fresh, momentum)
            log_forward = jnp.where(starts, log_forward, 0.0)
        step_size = self._scaled_step_size()
        moved, half_kicked = start_leapfrog(position, fresh, score, step_size)
        return Departure(moved, (half_kicked, leapfrogs + 1), log_forward)

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        momentum, leapfrogs = memory
        momentum = end_leapfrog(momentum, score, self._scaled_step_size())
        # The refreshments leave N(0, I) invariant, so the ratio of the two path densities
        # reduces to the kinetic energies at both ends of each trajectory.
        log_reverse = standard_normal_logdensity(momentum)
        if self.num_leapfrogs > 1:
            ends = leapfrogs % self.num_leapfrogs == 0
            log_reverse = jnp.where(ends, log_reverse, 0.0)
        return Arrival((momentum, leapfrogs), log_reverse)

    def _scaled_step_size(self) -> Float[Array, " d"] | Scalar:
        if self.metric is None:
            return self.step_size.value
        return self.step_size.value * jnp.sqrt(self.metric.value)
