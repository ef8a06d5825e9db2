"""Simulation-based calibration of `infer`: ranks of true values among draws are uniform."""

import jax
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats

import relbo

SIMULATIONS, DRAWS, BINS = 200, 640, 20


def normal(y=None):
    loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("rows", 10):
        numpyro.sample("y", dist.Normal(loc, scale), obs=y)


def schools(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 5):
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * t, 1.0), obs=y)


def counts(y=None):
    rates = numpyro.sample("rates", dist.Dirichlet(np.full(4, 2.0)))
    total = numpyro.sample("total", dist.Gamma(5.0, 0.1))
    with numpyro.plate("cells", 4):
        numpyro.sample("y", dist.Poisson(total * rates), obs=y)


def simulate(model, seed):
    trace = handlers.trace(handlers.seed(model, seed)).get_trace()
    return {name: np.asarray(site["value"]) for name, site in trace.items()}


@pytest.mark.slow
@pytest.mark.parametrize("model", [normal, schools, counts])
def test_ranks_are_uniform(model, x64):
    ranks: dict[str, list[int]] = {}
    for seed in range(SIMULATIONS):
        truth = simulate(model, seed)
        y = np.asarray(truth.pop("y"), float)
        found = relbo.infer(jr.key(seed), model, (y,), num_draws=DRAWS, progress=False).draws
        # Every second draw: neighbours in a chain are not quite independent.
        for name, values in found.items():
            first = truth[name].reshape(-1)[0]
            kept = values.reshape(DRAWS, -1)[::2, 0]
            ranks.setdefault(name, []).append(int(np.sum(kept < first)))
    jax.clear_caches()
    for name, values in ranks.items():
        counted, _ = np.histogram(values, BINS, (0, DRAWS // 2 + 1))
        # One chance in a thousand for a uniform law, shared by the coordinates tried.
        assert stats.chisquare(counted).pvalue > 1e-3 / len(ranks), (name, counted)
