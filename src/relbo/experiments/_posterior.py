"""Posterior draws for the experiments, in one place."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from relbo._program import Model


def posterior_draws(
    key: PRNGKeyArray,
    model: Model,
    args: tuple,
    kwargs: dict[str, Any] | None = None,
    *,
    num_draws: int,
    num_chains: int | None = None,
) -> dict[str, Array]:
    """Draws from the exact posterior by site, along a leading axis."""
    from relbo.inference import infer

    posterior = infer(
        key,
        model,
        args,
        kwargs,
        num_draws=num_draws,
        num_chains=num_chains,
        progress=False,
    )
    return {name: jnp.asarray(values) for name, values in posterior.draws.items()}
