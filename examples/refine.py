"""Trains a Gaussian guide with eight annealed Hamiltonian steps inside, on a bound."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jax.scipy.stats import norm

import relbo


def funnel(z):
    """Returns the log density of z1 ~ N(0, 1.35), z2 ~ N(0, exp(z1)); any other would do."""
    # Scaling before squaring avoids overflow where the funnel is narrow.
    return norm.logpdf(z[0], scale=1.35) + norm.logpdf(z[1] * jnp.exp(-z[0])) - z[0]


base = relbo.DiagonalNormal(jnp.zeros(2))
guide = base, relbo.Refinement(num_steps=8)
adam = optax.adam(0.01)
state = adam.init(eqx.filter(guide, eqx.is_inexact_array))


def elbo(guide, key, num_draws):
    base, refinement = guide
    return relbo.refined_objective(key, refinement, base, funnel, num_draws=num_draws).value


@eqx.filter_jit
def update(guide, state, key):
    grads = eqx.filter_grad(lambda guide: -elbo(guide, key, 64))(guide)
    updates, state = adam.update(grads, state)
    return eqx.apply_updates(guide, updates), state


for key in jr.split(jr.key(0), 1_000):
    guide, state = update(guide, state, key)

print("ELBO", eqx.filter_jit(elbo)(guide, jr.key(1), 20_000), "(log Z is 0)")
