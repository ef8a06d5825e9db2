"""Steps never hurt: after training the refined objective is not below the base's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import relbo
from registry import COVER, VALID, make, particles

NUM_ITERATIONS, NUM_DRAWS = 2000, 2000
"""Steps that push particles apart (SGLDR) are below the base by 0.05 after 200 iterations, 0.03
after 600 and 0.01 after 2,000: training has to make them small."""
LOC = -0.5 * jnp.ones(2)
"""The base N(-1/2, 1) is the best normal for both densities."""


def logdensity(is_normal, z):
    """A normal, where nothing can be gained, or the logarithm of exponential variables."""
    normal = -0.5 * jnp.sum(jnp.square(z - LOC) + jnp.log(2 * jnp.pi))
    return jnp.where(is_normal, normal, jnp.sum(z - jnp.exp(z)))


def trained_log_weights(refinement, is_normal):
    """Trains base and steps together, from the best base, and returns fresh log weights."""
    model = relbo.DiagonalNormal(LOC), refinement
    params, static = eqx.partition(model, eqx.is_inexact_array)
    # Bounded as in `relbo.fit`: without, one gradient through SVGD's determinant may take the
    # parameters to where a draw in a thousand has a weight of exp(-70).
    optimiser = optax.chain(
        optax.clip_by_global_norm(10.0),
        optax.adam(optax.cosine_decay_schedule(0.02, NUM_ITERATIONS)),
    )

    def objective(params, key, num_draws):
        base, refinement = eqx.combine(params, static)
        return relbo.refined_objective(
            key,
            refinement,
            base,
            lambda z: logdensity(is_normal, z),
            num_draws=num_draws,
            **particles(refinement),
        )

    def step(carry, key):
        params, state = carry
        gradient = jax.grad(lambda params: -objective(params, key, 8).value)(params)
        updates, state = optimiser.update(gradient, state)
        return (eqx.apply_updates(params, updates), state), None

    start = params, optimiser.init(params)
    (params, _), _ = jax.lax.scan(step, start, jr.split(jr.key(0), NUM_ITERATIONS))
    return objective(params, jr.key(1), NUM_DRAWS).log_weights


def _pairs():
    # `GaussianAccount("draw")` without steps is a normal around a draw of the base and not the
    # base: it is 0.5 to 0.7 below, whatever the steps.
    pairs = [pair for pair in VALID if pair[1] != 'GaussianAccount("draw")']
    slow = pytest.mark.slow
    return [pytest.param(*pair, marks=() if pair in COVER else slow) for pair in pairs]


@pytest.mark.parametrize(("kernel", "account"), _pairs())
def test_steps_never_hurt(kernel, account):
    refinement = make(kernel, account, 0.05, num_steps=2, space="whitened")
    run = jax.jit(jax.vmap(lambda is_normal: trained_log_weights(refinement, is_normal)))
    number = particles(refinement).get("num_particles") or 1
    log_weights = np.asarray(run(jnp.array([True, False])), float) / number
    # log Z is 0; a normal of scale 1 has the ELBO m - exp(m + 1/2) + log sqrt(2 pi e).
    base = np.array([0.0, 2 * (-1.5 + 0.5 * np.log(2 * np.pi * np.e))])
    elbo = log_weights.mean(1)
    error = log_weights.std(1) / NUM_DRAWS**0.5
    # The last digits of a stochastic optimiser count as well where weights are constant.
    assert np.all(elbo > base - 4 * error - 0.01), (elbo, base, error)
