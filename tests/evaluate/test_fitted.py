"""Fitted importance sampling on probabilistic PCA, which has a known marginal likelihood."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm
from scipy import stats

import relbo
from relbo import evaluate
from relbo.evaluate import fitted

NOISE, NUM_POINTS, NUM_OBSERVED = 0.5, 10, 4
PRIOR = relbo.StandardNormal(jnp.zeros(2))
WEIGHTS = jr.normal(jr.key(0), (NUM_OBSERVED, 2))
DATA = jr.normal(jr.key(1), (NUM_POINTS, NUM_OBSERVED))
PROPOSAL = evaluate.FittedProposal(num_components=2, num_rounds=0)


class Decoder(eqx.Module):
    weights: jax.Array

    def __call__(self, z, x):
        return jnp.sum(norm.logpdf(x, self.weights @ z, NOISE))


MODEL = evaluate.LatentVariableModel(Decoder(WEIGHTS))


def marginal():
    covariance = WEIGHTS @ WEIGHTS.T + NOISE**2 * jnp.eye(NUM_OBSERVED)
    return stats.multivariate_normal(cov=covariance).logpdf(DATA)


def posterior_draws(spread=1.0, number=50):
    covariance = jnp.linalg.inv(jnp.eye(2) + WEIGHTS.T @ WEIGHTS / NOISE**2)
    locs = DATA @ WEIGHTS @ covariance / NOISE**2
    noise = jr.normal(jr.key(2), (NUM_POINTS, number, 2))
    return locs[:, None] + spread * noise @ jnp.linalg.cholesky(covariance).T


def estimate(draws, num_draws=1_000, **options):
    proposal = evaluate.FittedProposal(**options)
    return evaluate.fitted_importance(
        3, MODEL, DATA, draws, PRIOR, num_draws=num_draws, proposal=proposal, batch_size=4
    )


@pytest.mark.parametrize("spread", [1.0, 0.1, 4.0], ids=["exact", "narrow", "wide"])
def test_estimates_agree_with_the_marginal(spread):
    found = estimate(posterior_draws(spread))
    difference = found.values - marginal()
    assert np.all(np.abs(difference) < 5 * found.stderrs)
    assert abs(difference.mean()) < 4 * np.sqrt(np.square(found.stderrs).sum()) / NUM_POINTS
    # The rounds correct the proposal for all three kinds of draws.
    assert np.all(found.ess > 300)
    assert np.all(found.pareto_k < 0.7)
    assert (found.num_draws, found.valid_bound) == (1_000, True)


@pytest.mark.slow
def test_estimates_agree_with_annealing():
    ours = estimate(posterior_draws())
    settings = evaluate.AnnealingSettings(200, 16)
    annealed = evaluate.annealed_pointwise(
        jr.key(0), MODEL, DATA, PRIOR, settings=settings, batch_size=4
    )
    error = np.hypot(ours.stderrs, annealed.stderrs)
    assert np.all(np.abs(ours.values - annealed.values) < 5 * error)
    assert evaluate.check_bound(ours, annealed)


def test_weights_of_a_bad_proposal_average_to_the_evidence():
    """With collapsed draws, no rounds and two components."""
    proposal = replace(PROPOSAL, min_scale=0.3, defensive_weight=0.3)
    draws = jnp.array([[0.5, 0.1], [-0.5, 0.4], [0.5, 0.1], [-0.5, 0.4]])
    logdensity_fn = lambda z, _: jnp.sum(norm.logpdf(z, 0.3, 0.7)) - 2.0
    weigh = jax.jit(
        lambda k: fitted.weigh_point(logdensity_fn, PRIOR, 20_000, proposal, k, None, draws)
    )
    found = evaluate.importance_estimate(weigh(jr.key(0)))
    assert abs(found.value + 2.0) < 4 * found.stderr
    assert found.stderr < 0.02


def test_mixture_finds_two_clusters():
    draw = np.random.default_rng(0)
    centres = np.array([[-2.0, 0.0], [2.0, 1.0]])
    scales = np.array([[0.3, 0.1], [0.2, 0.5]])
    # Half of the points in each cluster, with total shares of 0.3 and 0.7.
    which = np.arange(1_000) % 2
    points = centres[which] + scales[which] * draw.normal(size=(1_000, 2))
    shares = jnp.where(which == 0, 0.3, 0.7) / 500
    mixture = jax.jit(lambda z: fitted.fit_mixture(z, shares, PROPOSAL))(jnp.asarray(points))
    order = np.argsort(mixture.locs[:, 0])
    np.testing.assert_allclose(np.exp(mixture.log_shares)[order], [0.3, 0.7], atol=0.05)
    np.testing.assert_allclose(mixture.locs[order], centres, atol=0.08)
    covariances = mixture.scale_trils @ jnp.swapaxes(mixture.scale_trils, 1, 2)
    found = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))[order]
    np.testing.assert_allclose(found, scales, rtol=0.15)


def test_moments_are_weighted_by_shares():
    points = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    proposal = replace(PROPOSAL, num_components=1, min_scale=1e-3)
    fit = jax.jit(lambda shares: fitted.fit_mixture(points, shares, proposal))
    mixture = fit(jnp.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(mixture.locs[0], [0.5, 0.0])
    np.testing.assert_allclose(mixture.scale_trils[0], [[0.5, 0.0], [0.0, 1e-3]], rtol=1e-3)


def test_densities_of_the_components_agree_with_scipy():
    position, shares = jnp.array([0.3, -1.2]), jnp.array([0.4, 0.6])
    locs = jnp.array([[0.0, 0.0], [1.0, -1.0]])
    trils = jnp.array([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [-0.3, 2.0]]])
    mixture = fitted.StudentMixture(jnp.log(shares), locs, trils)
    student = partial(dist.MultivariateStudentT, 7)
    found = fitted.component_log_probs(position, mixture, student)
    for i in range(2):
        exact = stats.multivariate_t(locs[i], trils[i] @ trils[i].T, df=7).logpdf(position)
        assert found[i] == pytest.approx(exact + np.log(shares[i]), rel=1e-5)


def test_tempering_keeps_a_minimal_effective_sample_size():
    tempered = jax.jit(lambda logs: fitted.tempered_shares(logs, 2))
    even = tempered(jnp.zeros(1_000))
    np.testing.assert_allclose(even, 1e-3, rtol=1e-5)
    mild = 0.5 * jr.normal(jr.key(0), (1_000,))
    np.testing.assert_allclose(tempered(mild), jax.nn.softmax(mild), rtol=1e-4)
    # Twenty draws for each of two dimensions.
    wild = tempered(30.0 * jr.normal(jr.key(0), (1_000,)).at[3].set(-jnp.inf))
    assert 1.0 / jnp.sum(wild**2) == pytest.approx(40.0, rel=0.01)


def test_invalid_arguments_raise_an_error_with_their_name():
    draws = posterior_draws()
    with pytest.raises(ValueError, match=r"draws: expected the shape \[10, draws, d\]"):
        estimate(draws[:3])
    for name, value in {
        "num_draws": 1,
        "num_rounds": -1,
        "num_round_draws": 1,
        "num_components": 0,
        "inflation": 0.0,
        "degrees_of_freedom": 0,
        "defensive_weight": 1.0,
        "min_scale": 0.0,
    }.items():
        with pytest.raises(ValueError, match=f"{name}: expected"):
            estimate(draws, **{name: value})


@pytest.mark.slow
def test_rounds_with_fewer_draws_correct_narrow_draws():
    few = estimate(0.1 * posterior_draws(), num_rounds=3, num_round_draws=200)
    many = estimate(0.1 * posterior_draws(), num_rounds=3)
    error = 5 * float(jnp.hypot(few.mean().stderr, many.mean().stderr)) + 0.02
    assert few.mean().value == pytest.approx(many.mean().value, abs=error)
    assert few.num_draws == many.num_draws
