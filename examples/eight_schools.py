"""Eight schools: how much does coaching help, if each school measured with its own error?

The model is non-centred (`theta = mu + tau * t`): a scale and what it scales are then nearly
independent, which makes sampling easier.
"""

import numpyro
import numpyro.distributions as dist


def model(effects, errors):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(errors)):
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * t)
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)
