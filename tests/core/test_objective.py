"""The objective: names, weights, systems, minibatches."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from registry import plain_refinement
from targets import TARGETS, gaussian, mixture

objective = eqx.filter_jit(relbo.refined_objective)
outline = partial(eqx.filter_eval_shape, relbo.refined_objective)
"""The same without numbers, and without compilation."""
BASE = relbo.DiagonalNormal(jnp.zeros(2), 1.5)
SGLD = plain_refinement(relbo.SGLD(0.05), num_steps=2)
SVGD = plain_refinement(relbo.SVGD(0.05), relbo.ChangeOfVariablesAccount(), num_steps=2)


def test_importance_weighting_averages_weights_before_the_logarithm():
    plain, weighted = (
        objective(jr.key(0), SGLD, BASE, mixture, num_draws=7, importance_weighted=flag)
        for flag in (False, True)
    )
    np.testing.assert_allclose(plain.log_weights, weighted.log_weights, rtol=1e-6)
    np.testing.assert_allclose(plain.value, jnp.mean(plain.log_weights), rtol=1e-6)
    expected = jnp.log(jnp.mean(jnp.exp(plain.log_weights)))
    np.testing.assert_allclose(weighted.value, expected, rtol=1e-5)
    assert (plain.name, weighted.name) == ("elbo", "importance-weighted elbo")


def test_weights_of_interacting_particles_belong_to_the_system():
    estimate = objective(jr.key(0), SVGD, BASE, mixture, num_particles=3, num_draws=4)
    assert estimate.log_weights.shape == (4,)
    np.testing.assert_allclose(estimate.value, jnp.mean(estimate.log_weights) / 3, rtol=1e-6)
    weighted = objective(
        jr.key(0), SVGD, BASE, mixture, num_particles=3, num_draws=4, importance_weighted=True
    )
    expected = (jax.nn.logsumexp(estimate.log_weights) - jnp.log(4)) / 3
    np.testing.assert_allclose(weighted.value, expected, rtol=1e-5)


def test_surrogates_are_called_surrogates():
    refinement = plain_refinement(relbo.SGD(0.01), relbo.ParticleAccount(), num_steps=2)
    estimate = outline(jr.key(0), refinement, BASE, mixture)
    assert estimate.name == "surrogate"
    weighted = outline(jr.key(0), refinement, BASE, mixture, importance_weighted=True)
    assert weighted.name == "importance-weighted surrogate"


def test_a_second_density_may_score_the_end():
    """With minibatches the kernel climbs one density and the objective scores another."""
    shifted = lambda z: gaussian(z) + 3.0
    one = objective(jr.key(0), SGLD, BASE, gaussian)
    two = objective(jr.key(0), SGLD, BASE, gaussian, final_logdensity_fn=shifted)
    np.testing.assert_allclose(two.value - one.value, 3.0, rtol=1e-4)
    assert two.bound.valid is True
    weighted = outline(
        jr.key(0), SGLD, BASE, gaussian, final_logdensity_fn=shifted, importance_weighted=True
    )
    assert weighted.bound.valid is False


def test_a_shared_minibatch_may_exceed_the_evidence():
    """The two minibatches must be independent: with the same one the mean exceeds log Z."""
    data = jnp.array([-2.0, 2.0])
    logdensity = lambda index, z: (
        -0.5 * jnp.sum(z**2) - 0.5 * jnp.log(2 * jnp.pi) - (data[index] - jnp.sum(z)) ** 2
    )
    log_evidence = float(
        jnp.log(
            jnp.sum(
                jax.vmap(
                    lambda z: jnp.exp(0.5 * (logdensity(0, z[None]) + logdensity(1, z[None])))
                )(jnp.linspace(-8, 8, 4001))
            )
            * 0.004
        )
    )
    refinement = plain_refinement(relbo.SGLD(0.15), num_steps=6)
    base = relbo.DiagonalNormal(jnp.zeros(1), 0.6)

    def value(shared, key):
        choice_key, key = jr.split(key)
        ours, theirs = jr.bernoulli(choice_key, shape=(2,)).astype(int)
        theirs = ours if shared else theirs
        return objective(
            key, refinement, base, lambda z: logdensity(ours, z),
            final_logdensity_fn=lambda z: logdensity(theirs, z),
        ).value  # fmt: skip

    keys = jr.split(jr.key(0), 20_000)
    shared, independent = (
        jax.jit(jax.vmap(lambda key, flag=flag: value(flag, key)))(keys)
        for flag in (True, False)
    )
    error = float(jnp.std(shared) / 20_000**0.5)
    assert jnp.mean(shared) > log_evidence + 4 * error
    assert jnp.mean(independent) < log_evidence


def test_nan_at_the_end_is_a_named_failure():
    estimate = objective(
        jr.key(0), SGLD, BASE, mixture, final_logdensity_fn=lambda z: jnp.nan * jnp.sum(z)
    )
    assert jnp.all(estimate.result == relbo.RESULTS.non_finite_objective)
    assert estimate.value == -jnp.inf


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="num_draws: expected an integer of 1 or more, got 0"):
        objective(jr.key(0), SGLD, BASE, mixture, num_draws=0)
    with pytest.raises(ValueError, match="particles of SGLD do not interact: use num_draws"):
        objective(jr.key(0), SGLD, BASE, mixture, num_particles=2)
    with pytest.raises(ValueError, match="num_particles: SVGD moves particles together"):
        objective(jr.key(0), SVGD, BASE, mixture, num_draws=2)


def test_weights_average_to_the_evidence_by_quadrature():
    """SGD with the exact determinant, integrated over the base on a grid."""
    target = TARGETS["mixture"]
    refinement = plain_refinement(
        relbo.SGD(0.02), relbo.ChangeOfVariablesAccount(), num_steps=3
    )
    grid = jnp.linspace(-9, 9, 181)
    points = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    base = relbo.DiagonalNormal(jnp.zeros(2), 2.0)

    def weight(point):
        estimate = objective(jr.key(0), refinement, relbo.Dirac(point), target.logdensity_fn)
        # From a point, log q is minus the log volume; the grid stands for the base.
        return jnp.exp(estimate.log_weights[0])

    total = jnp.sum(jax.jit(jax.vmap(weight))(points)) * 0.01
    assert base.has_density
    assert total == pytest.approx(1.0, abs=2e-3)
