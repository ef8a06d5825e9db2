"""Log densities with a known evidence, each with a base that covers it."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

import relbo

LOG_2PI = 1.8378770664093453


class Target(NamedTuple):
    logdensity_fn: Callable[[Array], Array]
    log_evidence: float
    dimension: int
    loc: float
    scale: float
    step_size: float
    """Small enough for gradient steps to be one-to-one where the base goes."""

    @property
    def base(self) -> relbo.DiagonalNormal:
        return relbo.DiagonalNormal(jnp.full(self.dimension, self.loc), self.scale)


def normal(x: Array, loc: float | Array, scale: float | Array) -> Array:
    return -0.5 * jnp.square((x - loc) / scale) - jnp.log(scale) - 0.5 * LOG_2PI


def gaussian(z: Array) -> Array:
    return jnp.sum(normal(z, 1.0, jnp.array([0.5, 1.0]))) - 7.0


def funnel(z: Array) -> Array:
    return normal(z[0], 0.0, 1.35) + normal(z[1], 0.0, jnp.exp(z[0]))


def mixture(z: Array) -> Array:
    left = jnp.sum(normal(z, -1.5, 0.7)) + jnp.log(0.3)
    right = jnp.sum(normal(z, 1.5, 0.7)) + jnp.log(0.7)
    return jnp.logaddexp(left, right)


SCHOOLS = (
    (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0),
    (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0),
)


def eight_schools(z: Array) -> Array:
    """mu, log tau and eight standardised effects (non-centred)."""
    effects, errors = jnp.array(SCHOOLS[0]), jnp.array(SCHOOLS[1])
    mu, log_tau, t = z[0], z[1], z[2:]
    tau = jnp.exp(log_tau)
    half_cauchy = jnp.log(2 / (5 * jnp.pi)) - jnp.log1p(jnp.square(tau / 5)) + log_tau
    prior = normal(mu, 0.0, 5.0) + half_cauchy + jnp.sum(normal(t, 0.0, 1.0))
    return prior + jnp.sum(normal(effects, mu + tau * t, errors))


TARGETS = {
    "gaussian": Target(gaussian, -7.0, 2, 0.5, 1.3, 0.02),
    "funnel": Target(funnel, 0.0, 2, 0.3, 0.8, 0.005),
    "mixture": Target(mixture, 0.0, 2, 0.2, 1.8, 0.02),
    "eight-schools": Target(eight_schools, -31.31135, 10, 0.8, 0.8, 0.005),
}


def mean_and_error(values: Array) -> tuple[float, float]:
    """Returns the mean and its standard error."""
    return float(jnp.mean(values)), float(jnp.std(values) / jnp.sqrt(values.shape[0]))


def log_weights(
    key: Array,
    refinement: relbo.Refinement,
    target: Target,
    num_draws: int,
    num_particles: int = 1,
) -> Array:
    """Log weights of draws, or of systems of interacting particles divided by their number."""
    interacting = refinement.kernel.interacting
    estimate = _log_weights(
        key,
        refinement,
        target.base,
        target.logdensity_fn,
        num_draws,
        num_particles if interacting else None,
    )
    return estimate / num_particles if interacting else estimate


@eqx.filter_jit
def _log_weights(key, refinement, base, logdensity_fn, num_draws, num_particles):
    return relbo.refined_objective(
        key,
        refinement,
        base,
        logdensity_fn,
        num_draws=num_draws,
        num_particles=num_particles,
    ).log_weights
