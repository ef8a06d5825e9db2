"""The learned sampler run on: its path, and draws along many chains."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO

import relbo
from registry import KERNELS, make
from targets import mixture

BASE = relbo.DiagonalNormal(jnp.zeros(2))


def quadratic(z):
    return -0.5 * jnp.sum(z**2)


def test_path_of_ascent_is_its_iterates():
    refinement = relbo.Refinement(relbo.SGD(0.1), relbo.GaussianAccount(), num_steps=2)
    path = refinement.run(jr.key(0), relbo.Dirac(jnp.ones(2)), quadratic, num_draws=3, every=2)
    # Two steps as trained, then a draw after each two.
    expected = 0.9 ** np.array([4.0, 6.0, 8.0])
    np.testing.assert_allclose(path.position, np.stack([expected] * 2, 1), rtol=1e-6)


def test_path_in_whitened_coordinates_comes_back_in_the_target_s():
    base = relbo.DiagonalNormal(jnp.array([1.0, -1.0]), jnp.array([2.0, 0.5]))
    refinement = relbo.Refinement(
        relbo.SGD(0.1), relbo.GaussianAccount(), num_steps=1, space="whitened"
    )
    path = np.asarray(refinement.run(jr.key(0), base, quadratic, num_draws=4).position)
    # A step of size 0.1 in u is one of 0.1 scale^2 in z.
    decay = 1 - 0.1 * np.array([2.0, 0.5]) ** 2
    np.testing.assert_allclose(path[1:], path[:-1] * decay, rtol=1e-5)


def test_chains_have_the_variance_of_a_finite_step():
    """Euler's scheme on a standard normal has the variance 1 / (1 - eta / 2)."""
    step_size, chains, draws = 0.5, 400, 100
    refinement = relbo.Refinement(relbo.SGLD(step_size), num_steps=1, anneal=False)
    run = jax.jit(
        lambda key: refinement.run(
            key, BASE, quadratic, num_draws=draws, every=4, num_chains=chains
        )
    )
    positions = np.asarray(run(jr.key(0)).position[:, 5:])
    variances = positions.var((1, 2))
    error = variances.std() / np.sqrt(chains)
    assert abs(variances.mean() - 1 / (1 - step_size / 2)) < 4 * error + 0.01


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_runs_on(kernel):
    refinement = make(kernel, 'GaussianAccount("draw")', 0.05, num_steps=2, space="whitened")
    number = "num_particles" if refinement.kernel.interacting else "num_chains"
    path = jax.jit(
        lambda key: refinement.run(key, BASE, mixture, num_draws=5, every=3, **{number: 4})
    )(jr.key(0))
    assert path.position.shape == (4, 5, 2)
    assert np.all(np.isfinite(path.position))
    assert np.all(np.diff(path.position, axis=1) != 0)


def test_broken_chains_stand_still_and_say_so():
    edge = lambda z: jnp.where(z[0] > 0, jnp.nan, 1.0) * jnp.sum(z)
    refinement = relbo.Refinement(relbo.SGD(0.3), relbo.GaussianAccount(), num_steps=1)
    path = refinement.run(jr.key(0), relbo.Dirac(-jnp.ones(2)), edge, num_draws=8)
    assert path.result == relbo.RESULTS.non_finite_gradient
    assert np.all(np.isfinite(path.position))
    np.testing.assert_array_equal(path.position[-1], path.position[-2])


@pytest.mark.parametrize(("name", "value"), [("num_draws", 0), ("every", 0)])
def test_lengths_are_checked(name, value):
    refinement = relbo.Refinement(relbo.SGLD(0.1), num_steps=1)
    with pytest.raises(ValueError, match=f"{name}: expected an integer of 1 or more"):
        refinement.run(jr.key(0), BASE, quadratic, **{"num_draws": 1, name: value})


def test_interacting_particles_must_be_counted():
    refinement = relbo.Refinement(relbo.SVGD(0.1), relbo.ParticleAccount(), num_steps=1)
    with pytest.raises(ValueError, match="num_particles"):
        refinement.run(jr.key(0), BASE, quadratic, num_draws=1)


def model(y):
    log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 1.0))
    scale = numpyro.deterministic("scale", jnp.exp(log_scale))
    mean = numpyro.sample("mean", dist.TruncatedNormal(0.0, 2.0, low=-3.0))
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


Y = jnp.array([0.3, 1.2, 2.2, 0.7, 1.4])


@pytest.fixture(scope="module")
def trained():
    with jax.numpy_rank_promotion("allow"):
        guide = relbo.AutoRefined(model, refinement=relbo.Refinement(max_step_size=0.3))
        svi = SVI(model, guide, optax.adam(0.02), Trace_ELBO(num_particles=8))
        return guide, svi.run(jr.key(0), 500, Y, progress_bar=False).params


def test_unadjusted_draws_agree_with_exact_ones(trained):
    guide, params = trained
    options = {"guide": guide, "params": params, "num_draws": 1600, "progress": False}
    long = relbo.sample(jr.key(1), model, (Y,), method="unadjusted", **options)
    exact = relbo.sample(jr.key(2), model, (Y,), **options)
    assert set(long.draws) == {"log_scale", "scale", "mean"}
    np.testing.assert_allclose(long.draws["scale"], np.exp(long.draws["log_scale"]), rtol=1e-5)
    for name in ("log_scale", "mean"):
        ours, theirs = long.draws[name], exact.draws[name]
        assert len(ours) == 1600
        assert abs(ours.mean() - theirs.mean()) < 0.25 * theirs.std()
        assert abs(np.log(ours.std() / theirs.std())) < 0.3
    check = long.check()
    assert check.acceptance is None
    assert "not Metropolis-adjusted" in str(check)
    assert not long.bad_chains.any()


def test_unadjusted_draws_need_a_refined_guide():
    with pytest.raises(ValueError, match="AutoRefined"):
        relbo.sample(jr.key(0), model, (Y,), method="unadjusted", progress=False)
