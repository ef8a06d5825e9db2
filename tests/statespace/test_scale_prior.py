"""The half-normal prior in its normal-quantile coordinate."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import pytest
import scipy.special
import scipy.stats
from numpyro import handlers
from numpyro.distributions import HalfNormal, biject_to
from numpyro.infer.util import potential_energy

from relbo.statespace import NormalScale
from relbo.statespace.scale_prior import HalfNormalQuantile

QUANTILES = np.array([-11.0, -6.0, -2.5, -0.1, 0.0, 0.1, 2.5, 6.0, 9.0])


def test_quantiles_agree_with_scipy_in_both_tails():
    wanted = np.where(
        QUANTILES < 0,
        np.sqrt(2.0) * scipy.special.erfinv(scipy.stats.norm.cdf(QUANTILES)),
        scipy.stats.halfnorm.isf(scipy.stats.norm.sf(QUANTILES)),
    )
    found = jax.jit(HalfNormalQuantile().__call__)(jnp.asarray(QUANTILES, jnp.float32))
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_the_inverse_inverts_the_transform():
    transform = HalfNormalQuantile()
    there_and_back = jax.jit(lambda x: transform.inv(transform(x)))
    found = there_and_back(jnp.asarray(QUANTILES, jnp.float32))
    np.testing.assert_allclose(found, QUANTILES, rtol=1e-4, atol=1e-5)


def test_the_jacobian_is_the_derivative():
    transform = HalfNormalQuantile()

    @jax.jit
    def both(x):
        return transform.log_abs_det_jacobian(x, transform(x)), jax.vmap(jax.grad(transform))(x)

    found, slopes = both(jnp.asarray(QUANTILES, jnp.float32))
    np.testing.assert_allclose(found, jnp.log(slopes), rtol=1e-4, atol=1e-4)


def test_derivatives_are_finite_far_in_the_tails():
    transform = HalfNormalQuantile()
    far = jnp.array([-40.0, -13.0, 13.0])

    def log_prior(x):
        scale = transform(x)
        return HalfNormal(1.0).log_prob(scale) + transform.log_abs_det_jacobian(x, scale)

    slopes = jax.jit(jax.vmap(jax.grad(log_prior)))(far)
    assert jnp.all(jnp.isfinite(slopes))
    assert slopes[0] > 0 > slopes[2], "the gradient points back to the centre"
    assert jax.jit(transform.__call__)(far[0]) > 0, "the scale is positive"


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_the_unconstrained_prior_is_standard_normal(scale):
    def model():
        numpyro.sample("scale", NormalScale(scale))

    energy = jax.jit(jax.vmap(lambda x: potential_energy(model, (), {}, {"scale": x})))
    points = jnp.linspace(-4.0, 4.0, 9)
    np.testing.assert_allclose(-energy(points), scipy.stats.norm.logpdf(points), rtol=1e-4)


def test_draws_and_densities_are_those_of_half_normal():
    one, other = NormalScale(0.3), HalfNormal(0.3)
    draws = one.sample(jr.key(0), (5,))
    np.testing.assert_array_equal(draws, other.sample(jr.key(0), (5,)))
    np.testing.assert_array_equal(one.log_prob(draws), other.log_prob(draws))
    assert [bool(one.support(value)) for value in (0.1, -0.1)] == [True, False]


def test_the_scale_can_be_batched_by_vmap():
    def model(scale):
        numpyro.sample("scale", NormalScale(scale))

    def constrained(scale, x):
        trace = handlers.trace(handlers.seed(model, 0)).get_trace(scale)
        return biject_to(trace["scale"]["fn"].support)(x)

    found = jax.jit(jax.vmap(constrained))(jnp.array([1.0, 5.0]), jnp.array([0.4, 0.4]))
    np.testing.assert_allclose(found[1], 5.0 * found[0], rtol=1e-6)
