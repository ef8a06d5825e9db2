"""A Gaussian guide with eight annealed Hamiltonian steps inside, trained on a bound."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax

import relbo
from relbo.models import funnel_logdensity  # or any log density of yours

base = relbo.DiagonalNormal(jnp.zeros(2))
guide = base, relbo.Refinement(relbo.Underdamped(0.1), num_steps=8, anneal=True)
adam = optax.adam(0.01)
state = adam.init(eqx.filter(guide, eqx.is_inexact_array))


def elbo(guide, key, draws):
    base, refinement = guide
    return relbo.refined_objective(
        key, refinement, base, funnel_logdensity, num_particles=draws
    ).value


@eqx.filter_jit
def update(guide, state, key):
    grads = eqx.filter_grad(lambda guide: -elbo(guide, key, 64))(guide)
    updates, state = adam.update(grads, state)
    return eqx.apply_updates(guide, updates), state


for key in jr.split(jr.key(0), 1_000):
    guide, state = update(guide, state, key)

print("ELBO", eqx.filter_jit(elbo)(guide, jr.key(1), 20_000), "(log Z is 0)")
