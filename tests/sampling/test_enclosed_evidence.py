"""The evidence from both sides, and whether the two estimates have met."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.problem import read
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.evidence import LogWeights, weigh

Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])


def conjugate(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def exact():
    covariance = 4.0 * np.ones((5, 5)) + np.eye(5)
    return float(dist.MultivariateNormal(jnp.zeros(5), covariance).log_prob(Y))


def test_both_ends_meet_only_if_they_are_close_and_certain():
    noise = 0.1 * np.random.default_rng(1).normal(size=640)
    assert LogWeights(noise, noise).has_met
    assert not LogWeights(noise, noise + 0.3).has_met
    assert not LogWeights(noise, noise - 0.3).has_met
    assert not LogWeights(30 * noise, 30 * noise).has_met
    assert not LogWeights(np.full(640, -np.inf), noise).has_met


def test_infer_encloses_the_evidence_of_a_conjugate_model():
    posterior = relbo.infer(jr.key(0), conjugate, (Y,), num_draws=1600, progress=False)
    for value, stderr in (posterior.log_weights.lower, posterior.log_weights.upper):
        assert abs(value - exact()) < 4 * stderr
        assert stderr < 0.05
    assert posterior.check().evidence_is_known
    assert posterior.log_evidence_upper == posterior.log_weights.upper[0]


def test_sample_without_weights_has_no_evidence():
    posterior = relbo.sample(jr.key(0), conjugate, (Y,), num_draws=1600, progress=False)
    assert posterior.log_evidence is posterior.log_evidence_upper is None
    assert posterior.check().evidence_is_known is None


def test_ends_far_apart_are_said_to_be_uncertain(tmp_path):
    posterior = relbo.infer(jr.key(0), conjugate, (Y,), num_draws=1600, progress=False)
    weights = posterior.log_weights
    posterior.log_weights = weights._replace(backward=weights.backward + 1.0)
    check = posterior.check()
    assert check.evidence_is_known is False
    assert check.trustworthy
    assert "The evidence is uncertain" in str(check)
    loaded = relbo.Posterior.load(posterior.save(tmp_path / "run"))
    assert loaded.log_evidence_upper == posterior.log_evidence_upper
    assert loaded.check() == check


def test_paths_get_longer_until_both_ends_meet():
    """A normal that is shifted by 8 standard deviations: short paths do not arrive."""
    runs = Ensemble(np.random.default_rng(2), read(conjugate, (Y,)), 64)
    runs.fit()
    runs.disperse()
    runs.warm_up()
    chains = runs.sample(64)
    lengths = []
    evaluate = runs.weigh
    runs.weigh = lambda num_rounds, num_steps: (
        lengths.append(num_steps),
        evaluate(num_rounds, num_steps),
    )[1]
    _, near = weigh(runs, chains, 320)
    assert lengths == [8]
    assert near.has_met
    runs.normal = runs.normal.moved(np.full(1, 8.0), np.ones((1, 1)))
    lengths.clear()
    _, far = weigh(runs, chains, 320)
    assert lengths[:2] == [8, 32]
    assert far.lower[0] < exact() + 4 * far.lower[1]


@pytest.mark.parametrize("num_rounds", [1, 4])
def test_weights_of_several_rounds(num_rounds):
    runs = Ensemble(np.random.default_rng(3), read(conjugate, (Y,)), 64)
    runs.fit()
    ends, forward = runs.weigh(num_rounds, 4)
    assert forward.shape == (64 * num_rounds,)
    assert runs.weigh_backwards(ends, 4).shape == forward.shape


def test_the_middle_of_both_sides_is_unbiased_and_its_error_that_of_repetitions():
    rng, spread, log_z = np.random.default_rng(2), 1.5, 3.0

    def middle():
        # Normal log weights whose means are Z and, from the other side, 1 / Z.
        forward = rng.normal(log_z - 0.5 * spread**2, spread, 300)
        backward = rng.normal(log_z + 0.5 * spread**2, spread, 300)
        return LogWeights(forward, backward).middle

    values, errors = np.array([middle() for _ in range(200)]).T
    assert abs(values.mean() - log_z) < 4 * values.std() / 200**0.5
    # The standard error of a standard deviation of 200 values is 5 %.
    np.testing.assert_allclose(errors.mean(), values.std(), rtol=0.2)


def test_the_middle_is_right_where_some_paths_have_no_weight():
    rng = np.random.default_rng(3)
    forward = np.where(rng.uniform(size=4000) < 0.25, 0.0, -np.inf)
    weights = LogWeights(forward, np.zeros(4000))
    for value, error in (weights.lower, weights.middle):
        assert abs(value - np.log(0.25)) < 4 * error
        np.testing.assert_allclose(error, (0.75 / 0.25 / 4000) ** 0.5, rtol=0.1)
    np.testing.assert_allclose(weights.upper[0], weights.lower[0])
    assert LogWeights(np.full(9, -np.inf), np.full(9, -np.inf)).middle == (-np.inf, np.inf)
