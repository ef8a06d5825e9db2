"""A path of densities from the base to the target."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.core.checks import check_integer


class Annealing(eqx.Module):
    r"""Learned inverse temperatures $0 < \beta_1 < \dots < \beta_T = 1$.

    Step t climbs $(1-\beta_t) \log q_0 + \beta_t \log p$ instead of $\log p$. The increments
    are a softmax of unconstrained numbers, so the path is monotone by construction.
    With the reverse-kernel account, Langevin steps along it are ULA-based annealing and
    underdamped steps are uncorrected Hamiltonian annealing (what NumPyro calls AutoDAIS).

    Args:
        num_steps: number of temperatures; later steps run at temperature 1.

    Example:
        >>> Annealing(4).inverse_temperatures.tolist()
        [0.25, 0.5, 0.75, 1.0]
    """

    logits: Float[Array, " steps"]

    def __init__(self, num_steps: int):
        check_integer("num_steps", num_steps, 1)
        self.logits = jnp.zeros(num_steps)

    @property
    def num_steps(self) -> int:
        return self.logits.shape[0]

    @property
    def inverse_temperatures(self) -> Float[Array, " steps"]:
        increments = jnp.exp(self.logits - jax.lax.stop_gradient(jnp.max(self.logits)))
        # The last step climbs the target exactly.
        temperatures = jnp.cumsum(increments)
        return temperatures / temperatures[-1]
