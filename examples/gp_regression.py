"""Gaussian process regression: a smooth curve with an unknown length scale.

The curve is integrated out. The data were simulated from two sine waves with noise of 0.25:

    rng = numpy.random.default_rng(4)
    x = numpy.sort(rng.uniform(0, 8, 30)).round(2)
    y = (numpy.sin(x) + 0.5 * numpy.sin(2.5 * x) + rng.normal(0, 0.25, 30)).round(2)
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(x, y):
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    distance = (x[:, None] - x[None, :]) / length
    covariance = amplitude**2 * jnp.exp(-0.5 * distance**2) + noise**2 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)
