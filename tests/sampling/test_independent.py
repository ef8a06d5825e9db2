"""Independent Metropolis steps: exact with a fair guide, not trusted with a poor one."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoDiagonalNormal

import relbo
from relbo.problem import read
from relbo.sampling.independent import metropolis, sample_independently

Y = np.array([0.4, 1.1, 2.3, 0.2, 0.9, 1.7], np.float32)
MEAN, SD = Y.sum() / (6 + 0.25), (6 + 0.25) ** -0.5


def model(y):
    """Has the closed-form posterior N(MEAN, SD), and an independent Gamma(3, 1)."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("rate", dist.Gamma(3.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def closed_form_evidence():
    covariance = 4.0 * np.ones((6, 6)) + np.eye(6)
    return float(dist.MultivariateNormal(jnp.zeros(6), covariance).log_prob(Y))


def funnel(y):
    """Has a posterior that no normal fits."""
    scale = numpyro.sample("scale", dist.Normal(0.0, 2.0))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(scale)))


def propose(loc, scale, model=model, **options):
    guide = AutoDiagonalNormal(model)
    with handlers.block(), handlers.seed(rng_seed=0):
        guide(Y)
    params = {"auto_loc": jnp.array(loc), "auto_scale": jnp.array(scale)}
    options = {"num_draws": 4096, "num_chains": 64, "progress": False, **options}
    return sample_independently(jr.key(0), read(model, (Y,)), guide, params, **options)


def test_chains_visit_in_proportion_to_the_weights():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, (2001, 8))
    visited, acceptance = metropolis(rng, np.log([0.2, 0.3, 0.5])[kind])
    assert visited.shape == acceptance.shape == (2000, 8)
    shares = np.stack([(kind.ravel()[visited] == k).mean(0) for k in range(3)])
    error = shares.std(1, ddof=1) / 8**0.5
    np.testing.assert_array_less(np.abs(shares.mean(1) - [0.2, 0.3, 0.5]), 4 * error)


def test_proposals_without_a_weight_are_never_accepted():
    log_weights = np.zeros((50, 4))
    log_weights[1::2] = np.nan
    visited, _ = metropolis(np.random.default_rng(0), log_weights)
    assert not np.any(visited // 4 % 2)
    with pytest.raises(ValueError, match=r"^guide: its draws have no density"):
        metropolis(np.random.default_rng(0), np.full((3, 4), -np.inf))


@pytest.mark.parametrize(
    ("loc", "scale"),
    [
        ([MEAN + 1.5 * SD, 0.9], [1.2 * SD, 0.75]),
        ([MEAN + 30 * SD, 1.0], [0.2 * SD, 0.3]),
    ],
    ids=["near", "far"],
)
def test_a_guide_is_corrected_and_gives_exact_draws_and_the_evidence(loc, scale):
    posterior = propose(loc, scale)
    check = posterior.check()
    assert check.trustworthy, check
    assert check.evidence_is_known
    assert "independent Metropolis" in str(check)
    assert posterior.draws["mean"].shape == (4096,)
    rate, mean = posterior.draws["rate"], posterior.draws["mean"]
    assert abs(mean.mean() - MEAN) < 4 * SD / check.ess**0.5
    assert abs(np.log(mean.std() / SD)) < 4 / (2 * check.ess) ** 0.5
    assert abs(rate.mean() - 3.0) < 4 * 3**0.5 / check.ess**0.5
    error = abs(posterior.log_evidence - closed_form_evidence())
    assert error < 4 * posterior.log_evidence_stderr


@pytest.mark.parametrize("scale", [[0.1, 0.1], [1.5, 1.0]], ids=["narrow", "wide"])
def test_a_poor_guide_is_not_trusted(scale):
    assert not propose([0.0, 0.0], scale, funnel).check().trustworthy


def test_without_time_there_are_eight_proposals_for_each_chain():
    posterior = propose([MEAN, 1.0], [SD, 0.6], seconds=0.0)
    assert posterior.sample_stats["lp"].shape == (64, 8)
    assert posterior.num_draws == 512


def test_weights_without_a_valid_account_are_not_trusted():
    refinement = relbo.Refinement(relbo.SGD(0.01), relbo.ParticleAccount(), num_steps=1)
    guide = relbo.AutoRefined(model, refinement=refinement)
    with handlers.block(), handlers.seed(rng_seed=0):
        guide.set_up(Y)
    params = {
        "auto_loc": jnp.array([MEAN, 1.0]),
        "auto_scale": jnp.array([SD, 0.6]),
        "auto_step_size": jnp.array(0.01),
    }
    problem = read(model, (Y,))
    options = {"num_draws": 512, "num_chains": 64, "progress": False}
    posterior = sample_independently(0, problem, guide, params, **options)
    assert "not valid" in posterior.notes[0]
    assert not posterior.check().trustworthy
