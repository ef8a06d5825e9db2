"""Funnels and centred hierarchies through `infer`: right, and trusted."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import relbo
from relbo.sampling import rounds as sampling

QUICK_AND_SLOW = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
LEVELS = np.array([0.01, 0.05, 0.95, 0.99])


def funnel():
    """The funnel of the README."""
    z1 = numpyro.sample("z1", dist.Normal(0.0, 1.35))
    numpyro.sample("z2", dist.Normal(0.0, jnp.exp(z1)))


def neals_funnel():
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))


def centred_schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, sigma), obs=y)


SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)


@pytest.mark.parametrize("seed", QUICK_AND_SLOW)
@pytest.mark.parametrize(
    ("model", "name", "sd"), [(funnel, "z1", 1.35), (neals_funnel, "v", 3.0)]
)
def test_funnels_are_right_and_trusted(model, name, sd, seed):
    posterior = relbo.infer(jr.key(seed), model, progress=False)
    check = posterior.check()
    assert check.trustworthy, check
    assert check.ess > 1000
    draws = posterior.draws[name]
    assert abs(draws.mean()) < 4 * sd / check.ess**0.5
    assert abs(np.log(draws.std() / sd)) < 4 / (2 * check.ess) ** 0.5
    below = np.mean(draws[:, None] < sd * stats.norm.ppf(LEVELS), 0)
    errors = np.sqrt(LEVELS * (1 - LEVELS) / check.ess)
    np.testing.assert_array_less(np.abs(below - LEVELS), 4 * errors)
    assert check.evidence_is_known
    for value, stderr in (posterior.log_weights.lower, posterior.log_weights.upper):
        assert abs(value) < 4 * stderr + 0.05


@pytest.mark.parametrize("seed", QUICK_AND_SLOW)
def test_centred_schools_are_right_and_trusted(seed):
    posterior = relbo.infer(jr.key(seed), centred_schools, SCHOOLS, progress=False)
    check = posterior.check()
    assert check.trustworthy, check
    # By quadrature over mu and tau.
    assert abs(posterior.log_evidence + 31.311) < 0.15
    error = 4 / check.ess**0.5
    assert abs(posterior.draws["mu"].mean() - 4.41) < error * 3.33
    assert abs(posterior.draws["tau"].mean() - 3.61) < error * 3.21


def ordinary():
    numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))


@pytest.mark.parametrize(("model", "is_compared"), [(funnel, True), (ordinary, False)])
def test_two_runs_are_compared_where_scales_depend_on_the_place(
    model, is_compared, monkeypatch
):
    compared = []
    original = sampling.findings_of_rounds

    def spy(before, after, names):
        compared.append(names)
        # The first comparison fails: another run follows.
        found = original(before, after, names)
        return found if len(compared) > 1 else [sampling.Finding("They differ.")]

    monkeypatch.setattr(sampling, "findings_of_rounds", spy)
    posterior = relbo.sample(jr.key(0), model, num_draws=1600, progress=False)
    assert (len(compared) > 1) == is_compared
    assert "They differ." not in posterior.notes
