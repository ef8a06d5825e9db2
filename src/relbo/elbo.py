"""Losses for guides whose particles move together."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.elbo import ELBO
from numpyro.infer.util import log_density

from relbo._program import fresh, mutable_values
from relbo._refined_guide import AbstractRefinedGuide


class RefinedELBO(ELBO):
    r"""The refined objective of K particles that move together.

    $$\frac{1}{K} \left[ \sum_i \log p(x, z_i) - \log q(z_{1:K}) \right]$$

    For kernels whose particles interact (SVGD, its stochastic version, the Fokker-Planck flow),
    which a loss that runs the guide once a particle cannot express. For other kernels it is
    NumPyro's `Trace_ELBO` with as many particles. Mutable state, such as that of batch norm, is
    averaged over the particles (`Trace_ELBO` drops it where there is more than one).

    Args:
        num_particles: K.

    Example:
        >>> from numpyro.infer import SVI
        >>> svi = SVI(model, guide, optimiser, RefinedELBO(num_particles=10))
    """

    def __init__(self, num_particles: int = 1):
        if num_particles < 1:
            raise ValueError(f"num_particles: expected at least 1, got {num_particles}")
        super().__init__(num_particles=num_particles)

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not isinstance(guide, AbstractRefinedGuide):
            raise ValueError(
                f"guide: expected a refined guide, got {type(guide).__name__}: use "
                "relbo.AutoRefined or relbo.refine, or numpyro.infer.Trace_ELBO for others"
            )
        guide_key, model_key = jr.split(rng_key)
        with handlers.block(), handlers.seed(rng_seed=guide_key):
            with handlers.substitute(data=param_map):
                latents, log_q = guide.particles(self.num_particles, *args, **kwargs)

        def log_joint(
            key: PRNGKeyArray, latent: dict[str, Array]
        ) -> tuple[Scalar, dict[str, PyTree]]:
            program = handlers.seed(model, key)
            values = {**fresh(param_map), **latent}
            log_p, trace = log_density(program, args, kwargs, values)
            return jnp.asarray(log_p), mutable_values(trace)

        keys = jr.split(model_key, self.num_particles)
        log_p, states = jax.vmap(log_joint)(keys, latents)
        loss = (log_q - jnp.sum(log_p)) / self.num_particles
        return {"loss": loss, "mutable_state": jax.tree.map(_of_one, states) or None}


def _of_one(states: Array) -> Array:
    """One state for all particles: their mean, or the first one's where a mean is no state."""
    return jnp.mean(states, axis=0) if jnp.issubdtype(states, jnp.inexact) else states[0]
