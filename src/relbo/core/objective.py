"""The objective to maximise: the refined ELBO, its importance-weighted form, or a surrogate."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from relbo.core.bases import AbstractBase
from relbo.core.checks import check_integer
from relbo.core.coordinates import LogDensity, for_each, repeat
from relbo.core.loop import RESULTS
from relbo.core.random import KeyLike, as_key
from relbo.core.refinement import Refinement
from relbo.core.validity import Bound, bound
from relbo.core.weights import log_mean_exp


class Objective(eqx.Module):
    """One estimate of a refined objective, which is maximised.

    `bound` says whether it is a lower bound on the evidence, and `name` is the name to print.
    """

    value: Scalar
    log_weights: Float[Array, " draws"]
    """One per draw; for interacting particles one per system, an estimate of K log Z."""
    result: RESULTS
    """How the walk of each draw (or system) ended. A failed walk has weight zero."""
    bound: Bound = eqx.field(static=True)
    importance_weighted: bool = eqx.field(static=True)

    @property
    def name(self) -> str:
        kind = "surrogate" if self.bound.valid is False else "elbo"
        return f"importance-weighted {kind}" if self.importance_weighted else kind


def refined_objective(
    key: KeyLike,
    refinement: Refinement,
    base: AbstractBase,
    logdensity_fn: LogDensity,
    *,
    num_draws: int = 1,
    num_particles: int | None = None,
    importance_weighted: bool = False,
    final_logdensity_fn: LogDensity | None = None,
) -> Objective:
    r"""Estimates the refined objective by Monte Carlo.

    $$E\left[ \log p(x, z_T) - \log q(z_T) \right] \quad\text{or}\quad
      E\left[ \log \tfrac{1}{S} \sum_s \exp\left( \log p(x, z_T^s) - \log q(z_T^s) \right)
      \right]$$

    For K interacting particles it is $\frac1K [\sum_i \log p(x, z_i) - \log q(z_{1:K})]$, and
    a weight belongs to the whole system.

    Args:
        key: a random key or an integer seed.
        refinement: the refinement.
        base: q0.
        logdensity_fn: log p(x, z), which the kernel climbs.
        num_draws: S, the number of independent draws; for kernels whose particles interact, of
            independent systems.
        num_particles: K, the number of particles of a system; only for kernels whose particles
            interact.
        importance_weighted: averages the weights before taking the logarithm.
        final_logdensity_fn: log p(x, z) in the objective itself where it is another estimate
            than the kernel's: with minibatches the two must be independent, otherwise the
            objective is not a bound.

    Returns:
        An `Objective`.

    Example:
        >>> import jax.numpy as jnp
        >>> refinement = Refinement(SGLD(0.1), num_steps=5)
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> estimate = refined_objective(0, refinement, base, lambda z: -jnp.sum(z**2))
        >>> estimate.name
        'elbo'
    """
    check_integer("num_draws", num_draws, 1)
    score_fn = logdensity_fn if final_logdensity_fn is None else final_logdensity_fn

    def log_weight(key: PRNGKeyArray) -> tuple[Scalar, RESULTS]:
        refined = refinement(key, base, logdensity_fn, num_particles=num_particles)
        logdensity = refined.logdensity
        if logdensity is None or final_logdensity_fn is not None:
            logdensity = jnp.sum(for_each(score_fn, num_particles)(refined.position))
        log_weight = logdensity - refined.log_q
        is_nan = (refined.result == RESULTS.successful) & jnp.isnan(log_weight)
        result = RESULTS.where(is_nan, RESULTS.non_finite_objective, refined.result)
        return jnp.where(result == RESULTS.successful, log_weight, -jnp.inf), result

    log_weights, result = repeat(log_weight, as_key(key), num_draws)
    value = log_mean_exp(log_weights) if importance_weighted else jnp.mean(log_weights)
    size = 1 if num_particles is None else num_particles
    num_coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(base.centre))
    validity = bound(
        refinement.kernel,
        refinement.account,
        refinement.num_steps,
        dimension=num_coordinates * size,
        subsampling="none" if final_logdensity_fn is None else "independent",
        importance_weighted=importance_weighted,
        base_has_density=base.has_density,
    )
    return Objective(value / size, log_weights, result, validity, importance_weighted)
