"""Supports of latent sites, and where a guide starts."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import (
    init_to_feasible,
    init_to_median,
    init_to_sample,
    init_to_value,
    reparam,
)

import relbo
from programs import assert_mean_weight, elbos, fit, prepare
from targets import mean_and_error


def constrained():
    numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("cholesky", dist.LKJCholesky(2, 1.0))
    ordered = dist.transforms.OrderedTransform()
    normal = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
    numpyro.sample("ordered", dist.TransformedDistribution(normal, ordered))


@pytest.mark.slow
def test_elbo_with_constrained_supports():
    guide = relbo.AutoRefined(constrained, num_steps=2)
    params = fit(constrained, guide, num_iterations=300)
    mean, error = mean_and_error(elbos(constrained, guide, params))
    assert -0.8 < mean < 4 * error


def test_constrained_supports():
    """Draws are inside the supports, and the weights average to the evidence of 1."""
    guide = relbo.AutoRefined(constrained, num_steps=2, init_scale=2.0)
    _, _, params = prepare(constrained, guide)
    assert_mean_weight(elbos(constrained, guide, params, num_draws=20_000), 0.0)
    draws = guide.sample_posterior(jr.key(0), params, sample_shape=(50,))
    np.testing.assert_allclose(jnp.sum(draws["simplex"], -1), 1.0, rtol=1e-5)
    assert jnp.all(jnp.diff(draws["ordered"]) > 0)
    np.testing.assert_allclose(jnp.sum(draws["cholesky"] ** 2, -1), 1.0, rtol=1e-4)


def test_a_support_that_depends_on_another_site_is_refused():
    def direct():
        high = numpyro.sample("high", dist.Uniform(0.0, 1.0))
        numpyro.sample("low", dist.Uniform(0.0, high))

    with pytest.raises(ValueError, match=r"support of \['low'\] depends.*TransformReparam"):
        prepare(direct, relbo.AutoRefined(direct))


OBSERVED = 0.9 + 0.1 * jr.normal(jr.key(0), (200,))


def below(data):
    """A uniform on (0, high), with high uniform itself, moved to a fixed support."""
    high = numpyro.sample("high", dist.Uniform(0.0, 1.0))
    scaled = dist.transforms.AffineTransform(0.0, high)
    with handlers.reparam(config={"low": reparam.TransformReparam()}):
        low = numpyro.sample(
            "low", dist.TransformedDistribution(dist.Uniform(0.0, 1.0), scaled)
        )
    with numpyro.plate("rows", len(data)):
        numpyro.sample("x", dist.Normal(low, 0.1), obs=data)


@pytest.mark.slow
def test_uniform_normal_with_a_support_reparameterised():
    guide = relbo.AutoRefined(below, num_steps=2)
    # The base alone converges after 1000 iterations: the steps slow the training down.
    params = fit(below, guide, OBSERVED, num_iterations=4000)
    draws = guide.sample_posterior(jr.key(0), params, OBSERVED, sample_shape=(1000,))
    np.testing.assert_allclose(draws["low"], draws["low_base"] * draws["high"], rtol=1e-5)
    # 200 observations leave a spread of 0.007 around their mean.
    assert jnp.median(draws["low"]) == pytest.approx(float(jnp.mean(OBSERVED)), abs=0.02)
    assert jnp.std(draws["low"]) < 0.03
    quantiles = guide.quantiles(params, [0.2, 0.5], OBSERVED)
    assert set(quantiles) == {"high", "low_base"}
    assert jnp.all(quantiles["high"][1] > 0.85)


def test_reparameterisation_equals_a_program_written_by_hand():
    def by_hand(data):
        high = numpyro.sample("high", dist.Uniform(0.0, 1.0))
        low = numpyro.sample("low_base", dist.Uniform(0.0, 1.0)) * high
        with numpyro.plate("rows", len(data)):
            numpyro.sample("x", dist.Normal(low, 0.1), obs=data)

    losses = []
    for program in (below, by_hand):
        svi, state, _ = prepare(program, relbo.AutoRefined(program, num_steps=2), OBSERVED)
        losses.append(jax.jit(svi.evaluate)(state, OBSERVED))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_improper_priors():
    def program(data):
        left, right = (
            numpyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), ()))
            for name in ("left", "right")
        )
        scale = numpyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
        mean = numpyro.deterministic("mean", left + right)
        with numpyro.plate("rows", len(data)):
            numpyro.sample("x", dist.Normal(mean, scale), obs=data)

    # Only the sum of the two is identified: an improper posterior must not break anything.
    guide = relbo.AutoRefined(program, num_steps=2)
    svi, state, params = prepare(program, guide, OBSERVED)
    assert jnp.isfinite(jax.jit(svi.update)(state, OBSERVED)[1])
    draws = guide.sample_posterior(jr.key(0), params, OBSERVED, sample_shape=(20,))
    np.testing.assert_allclose(draws["mean"], draws["left"] + draws["right"], rtol=1e-5)
    assert jnp.all(draws["scale"] > 0)


INITS = [init_to_feasible, init_to_median, init_to_sample]


@pytest.mark.parametrize("init_loc_fn", INITS)
def test_initial_values(init_loc_fn):
    """Sites that cannot be refined are refused by name, whatever the initial values."""

    def sphere():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("direction", dist.ProjectedNormal(x))

    def discrete():
        chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
        numpyro.sample("side", dist.Bernoulli(chance))

    def good():
        numpyro.sample("chance", dist.Beta(2.0, 2.0))
        numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))

    for program, message in [
        (sphere, r"'direction'.*ProjectedNormalReparam"),
        (discrete, r"\['side'\] are discrete.*relbo.collapse"),
    ]:
        with pytest.raises(ValueError, match=message):
            prepare(program, relbo.AutoRefined(program, init_loc_fn=init_loc_fn))
    prepare(good, relbo.AutoRefined(good, num_steps=0, init_loc_fn=init_loc_fn))


def test_given_initial_values():
    def program():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("scale", dist.HalfNormal(1.0))

    start = init_to_value(values={"x": 1.5, "scale": 2.0})
    guide = relbo.AutoRefined(program, init_loc_fn=start, init_scale=0.3, num_steps=1)
    _, _, params = prepare(program, guide)
    np.testing.assert_allclose(params["auto_loc"], [1.5, jnp.log(2.0)], rtol=1e-5)
    np.testing.assert_allclose(params["auto_scale_tril"], 0.3 * jnp.eye(2), rtol=1e-5)


def test_latent_delta_sites_are_refused():
    def program(x):
        numpyro.sample("x", dist.Delta(3.0), obs=x)
        numpyro.sample("y", dist.Normal(0.0, 1.0))

    guide = relbo.AutoRefined(program, num_steps=1)
    with pytest.raises(ValueError, match=r"'x' has a delta distribution.*deterministic"):
        prepare(program, guide, None)
    svi, state, _ = prepare(program, relbo.AutoRefined(program, num_steps=1), 3.0)
    assert jnp.isfinite(svi.evaluate(state, 3.0))
