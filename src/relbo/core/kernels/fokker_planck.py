"""The Fokker-Planck flow: Langevin dynamics without noise."""

from typing import Any, ClassVar

import jax.numpy as jnp

from relbo.core.kernels.contract import AbstractDeterministicKernel, Position
from relbo.core.kernels.rbf import optional_bandwidth, rbf
from relbo.core.parameters import Positive


class FokkerPlanckFlow(AbstractDeterministicKernel):
    r"""The deterministic flow with the marginals of Langevin dynamics (paper, appendix A).

    $$z_i' = z_i + \eta\, \bigl( g(z_i) - s(z_i) \bigr), \qquad
      s(z_i) = \frac{\sum_k \nabla_i K_{ik}}{\sum_j K_{ij}}
             + \sum_k \frac{\nabla_i K_{ik}}{\sum_j K_{jk}}$$

    where $s$ is a kernel estimate of $\nabla \log q$ from the K particles. The paper prints a
    minus sign before $\eta$, which is a misprint.

    Args:
        step_size: $\eta$; as for `SGD`.
        bandwidth: the learned bandwidth of the radial kernel; `None` for the median heuristic.

    References:
        Carrillo, Craig and Patacchini, A blob method for diffusion, 2019.
    """

    step_size: Positive
    bandwidth: Positive | None
    interacting: ClassVar[bool] = True

    def __init__(self, step_size: Any = 0.1, *, bandwidth: Any = None):
        self.step_size = Positive.of(step_size, name="step_size")
        self.bandwidth = optional_bandwidth(bandwidth)

    def drift(self, position: Position, score: Position) -> Position:
        gram, gram_grad = rbf(position, self.bandwidth)
        # gram is symmetric: its row sums are its column sums.
        mass = gram.sum(axis=1)
        own = gram_grad.sum(axis=1) / mass[:, None]
        others = jnp.sum(gram_grad / mass[None, :, None], axis=1)
        return score - own - others
