"""The Fokker-Planck flow: Langevin dynamics without noise."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from relbo.core.kernels.contract import AbstractDeterministicKernel, Position
from relbo.core.kernels.rbf import optional_bandwidth, rbf
from relbo.core.parameters import Positive, as_step_size


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

    step_size: Positive = eqx.field(default=0.1, converter=as_step_size)
    bandwidth: Positive | None = eqx.field(
        default=None, converter=optional_bandwidth, kw_only=True
    )
    interacting: ClassVar[bool] = True

    def drift(self, position: Position, score: Position) -> Position:
        gram, gram_grad = rbf(position, self.bandwidth)
        # gram is symmetric: its row sums are its column sums.
        mass = gram.sum(axis=1)
        own = gram_grad.sum(axis=1) / mass[:, None]
        others = jnp.sum(gram_grad / mass[None, :, None], axis=1)
        return score - own - others
