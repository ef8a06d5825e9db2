"""A mixture with discrete latent sites: which of two groups each observation belongs to.

The sites `z` are summed out before inference, because a gradient-based sampler cannot move
them. The second mean lies above the first, so that the groups cannot swap names, and the prior
on the gap has no mass at zero, where the two groups would be the same. The data were simulated
with weights 0.35 and 0.65, means -1 and 2, and standard deviations 0.7 and 1:

    rng = numpy.random.default_rng(7)
    z = rng.uniform(size=120) < 0.65
    y = numpy.where(z, rng.normal(2, 1, 120), rng.normal(-1, 0.7, 120)).round(2)
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(2, 5.0)))
    low = numpyro.sample("low", dist.Normal(0.0, 3.0))
    gap = numpyro.sample("gap", dist.Gamma(4.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0).expand([2]).to_event(1))
    mean = jnp.array([low, low + gap])
    with numpyro.plate("observations", len(y)):
        z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mean[z], scale[z]), obs=y)
