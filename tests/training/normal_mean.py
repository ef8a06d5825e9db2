"""The model of these tests: the mean of a few numbers, with its evidence in closed form.

Its guides and optimisers are shared, so that each program is compiled once.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoNormal

import relbo
from relbo import Stopping

NUM, PRIOR_SD = 8, 2.0
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4, -0.4, 2.9, 1.1], np.float32)
UNTIL_THE_END = Stopping(early=False)
BACK_OFF = Stopping(early=False, on_failure="back off")


def model(y, batch_size=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def own_guide(y, batch_size=None):
    loc = numpyro.param("loc", lambda key: jr.normal(key))
    scale = numpyro.param("scale", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


PLAIN = AutoNormal(model)
REFINED = relbo.AutoRefined(model, num_steps=2)
# The rate becomes ten times too high after 1100 iterations.
DESCENT = optax.sgd(lambda count: jnp.where(count < 1100, 0.02, 0.25))
TOO_FAST = optax.sgd(2.0)


def closed_form(y=Y):
    """Returns the posterior's mean and standard deviation, and the log evidence."""
    precision = PRIOR_SD**-2 + NUM
    covariance = PRIOR_SD**2 * np.ones((NUM, NUM)) + np.eye(NUM)
    evidence = dist.MultivariateNormal(jnp.zeros(NUM), covariance).log_prob(jnp.asarray(y))
    return float(np.sum(y) / precision), precision**-0.5, float(evidence)


def fit(guide=own_guide, y=Y, key=0, **options):
    options = {"num_iterations": 300, "progress": False, **options}
    return relbo.fit(key, model, (y,), guide=guide, **options)


def fit_minibatches(y=Y, **options):
    return fit(y=y, kwargs={"batch_size": 4}, **{"batch_size": 4, **options})
