"""NumPyro programs whose evidence or posterior is known, and how the tests fit them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO

NUM = 20
DATA = jr.normal(jr.key(1), (NUM,)) + 2.0


def conjugate(data, batch_size=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        batch = numpyro.subsample(data, 0)
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=batch)


def conjugate_evidence(data=DATA, prior_scale=3.0):
    covariance = jnp.eye(NUM) + prior_scale**2 * jnp.ones((NUM, NUM))
    return float(dist.MultivariateNormal(jnp.zeros(NUM), covariance).log_prob(data))


def local(data, batch_size=None):
    """One latent value a data point: the evidence is that of independent normals."""
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        batch = numpyro.subsample(data, 0)
        z = numpyro.sample("z", dist.Normal(0.0, 2.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=batch)


def local_evidence(data=DATA):
    return float(jnp.sum(dist.Normal(0.0, 5.0**0.5).log_prob(data)))


def encoder(data, batch_size=None):
    slope = numpyro.param("slope", 0.0)
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        batch = numpyro.subsample(data, 0)
        numpyro.sample("z", dist.Normal(slope * batch, scale))


FEATURES = jr.normal(jr.key(2), (12, 2))
LABELS = FEATURES @ jnp.array([1.0, -0.5]) + 0.3 * jr.normal(jr.key(3), (12,))


def regression(features, labels=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("norm", jnp.sum(weights**2))
    with numpyro.plate("rows", 12):
        numpyro.sample("y", dist.Normal(features @ weights, scale), obs=labels)


def prepare(model, guide, *args, loss=None, **kwargs):
    """SVI at its start, and the parameters there."""
    svi = SVI(model, guide, optax.adam(0.01), loss or Trace_ELBO())
    state = svi.init(jr.key(0), *args, **kwargs)
    return svi, state, svi.get_params(state)


def fit(model, guide, *args, num_iterations=200, learning_rate=0.05, loss=None, **kwargs):
    schedule = optax.cosine_decay_schedule(learning_rate, num_iterations)
    svi = SVI(model, guide, optax.adam(schedule), loss or Trace_ELBO(num_particles=4))
    return svi.run(jr.key(0), num_iterations, *args, progress_bar=False, **kwargs).params


def assert_mean_weight(log_weights, log_evidence):
    """Checks that weights average to the evidence, as those of any guide do, trained or not."""
    ratios = jnp.exp(log_weights - log_evidence)
    error = jnp.std(ratios) / ratios.size**0.5
    assert abs(jnp.mean(ratios) - 1.0) < 4 * error
    assert error < 0.1


def elbos(model, guide, params, *args, num_draws=2000):
    """Independent estimates of the ELBO, one a draw."""
    loss = Trace_ELBO()
    one = lambda key: -loss.loss(key, params, model, guide, *args)
    return jax.jit(jax.vmap(one))(jr.split(jr.key(9), num_draws))
