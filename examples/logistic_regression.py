"""Logistic regression: did cold weather damage the O-rings of the space shuttle?

The data are the 23 flights before the Challenger's last one: the temperature at launch (in
Fahrenheit) and whether an O-ring was damaged, from the Presidential Commission's report (1986).
The last launch was at 31 F, much colder than any of them; `risk_at_31` is the predicted risk.
"""

import jax
import numpyro
import numpyro.distributions as dist


def model(temperature, damage):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    logits = lambda degrees: intercept + slope * (degrees - 70.0) / 10.0
    numpyro.deterministic("risk_at_31", jax.nn.sigmoid(logits(31.0)))
    with numpyro.plate("flights", len(temperature)):
        numpyro.sample("damaged", dist.Bernoulli(logits=logits(temperature)), obs=damage)
