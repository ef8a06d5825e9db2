"""What is maximised: the refined ELBO, its importance-weighted form, or a surrogate."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from relbo._walk import RESULTS
from relbo._weights import log_mean_exp
from relbo.bases import AbstractBase
from relbo.refinement import Refinement
from relbo.validity import Bound, bound


class Objective(eqx.Module):
    """One estimate of a refined objective.

    It is maximised. Whether it may be called an ELBO is not a matter of taste: `bound` says so,
    and `name` is what a report should print.
    """

    value: Scalar
    log_weights: Float[Array, " draws"]
    """One a draw; of particles that interact, one a system (an estimate of K log Z)."""
    result: RESULTS
    """One a draw (or system): how its walk ended. A failed walk has the weight zero."""
    bound: Bound = eqx.field(static=True)
    importance_weighted: bool = eqx.field(static=True)

    @property
    def name(self) -> str:
        kind = "surrogate" if self.bound.valid is False else "elbo"
        return f"importance-weighted {kind}" if self.importance_weighted else kind


def refined_objective(
    key: PRNGKeyArray,
    refinement: Refinement,
    base: AbstractBase,
    logdensity_fn: Callable[[PyTree], Scalar],
    *,
    num_particles: int = 1,
    num_systems: int = 1,
    importance_weighted: bool = False,
    final_logdensity_fn: Callable[[PyTree], Scalar] | None = None,
) -> Objective:
    r"""Estimates the refined objective by Monte Carlo.

    $$E\left[ \log p(x, z_T) - \log q(z_T) \right] \quad\text{or}\quad
      E\left[ \log \tfrac{1}{S} \sum_s \exp\left( \log p(x, z_T^s) - \log q(z_T^s) \right)
      \right]$$

    For K particles that interact it is $\frac1K [\sum_i \log p(x, z_i) - \log q(z_{1:K})]$, and
    weights belong to the system.

    Args:
        key: a random key.
        refinement: what refines.
        base: q0.
        logdensity_fn: log p(x, z), which the kernel climbs.
        num_particles: how many draws; for kernels whose particles interact, how many move
            together.
        num_systems: for kernels whose particles interact, how many independent systems.
        importance_weighted: average the weights before the logarithm.
        final_logdensity_fn: log p(x, z) for the objective's own term where it is another
            estimate than the kernel's: with minibatches the two must be independent, or the
            objective is no bound.

    Returns:
        An `Objective`.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> refinement = Refinement(SGLD(0.1), num_steps=5)
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> estimate = refined_objective(jr.key(0), refinement, base, lambda z: -jnp.sum(z**2))
        >>> estimate.name
        'elbo'
    """
    for name, number in (("num_particles", num_particles), ("num_systems", num_systems)):
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")
    interacting = refinement.kernel.interacting
    if not interacting and num_systems != 1:
        raise ValueError(
            f"num_systems: particles of {type(refinement.kernel).__name__} do not interact, so "
            "each is a system of its own: use num_particles"
        )
    score_fn = logdensity_fn if final_logdensity_fn is None else final_logdensity_fn

    def log_weight(key: PRNGKeyArray) -> tuple[Scalar, RESULTS]:
        size = num_particles if interacting else None
        refined = refinement(key, base, logdensity_fn, num_particles=size)
        logdensity = refined.logdensity
        if logdensity is None or final_logdensity_fn is not None:
            score = jax.vmap(score_fn) if interacting else score_fn
            logdensity = jnp.sum(score(refined.position))
        log_weight = logdensity - refined.log_q
        is_nan = (refined.result == RESULTS.successful) & jnp.isnan(log_weight)
        result = RESULTS.where(is_nan, RESULTS.non_finite_objective, refined.result)
        return jnp.where(result == RESULTS.successful, log_weight, -jnp.inf), result

    num_weights = num_systems if interacting else num_particles
    log_weights, result = jax.vmap(log_weight)(jr.split(key, num_weights))
    value = log_mean_exp(log_weights) if importance_weighted else jnp.mean(log_weights)
    return Objective(
        value / num_particles if interacting else value,
        log_weights,
        result,
        _bound(refinement, base, num_particles, importance_weighted, final_logdensity_fn),
        importance_weighted,
    )


def _bound(
    refinement: Refinement,
    base: AbstractBase,
    num_particles: int,
    importance_weighted: bool,
    final_logdensity_fn: Callable | None,
) -> Bound:
    coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(base.centre))
    return bound(
        refinement.kernel,
        refinement.entropy,
        refinement.num_steps,
        dimension=coordinates * (num_particles if refinement.kernel.interacting else 1),
        subsampling="none" if final_logdensity_fn is None else "independent",
        importance_weighted=importance_weighted,
        base_has_density=base.has_density,
    )
