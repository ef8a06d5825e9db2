"""The importance-weighted ELBO with weights for each data point."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import RenyiELBO, Trace_ELBO

import relbo

DATA = jnp.array([0.3, -1.2, 2.0, 0.5])


def model(x, num_points=None):
    with numpyro.plate("points", num_points or len(x), subsample_size=len(x)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def guide(x, num_points=None):
    width = numpyro.param("width", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("points", num_points or len(x), subsample_size=len(x)):
        numpyro.sample("z", dist.Normal(0.2 * x, width))


def exact_log_evidence(x):
    return dist.Normal(0.0, jnp.sqrt(2.0)).log_prob(x).sum()


def mean_loss(loss, guide, num_runs=2000, **kwargs):
    run = lambda key: loss.loss(key, {"width": 1.0}, model, guide, DATA, **kwargs)
    losses = np.asarray(jax.jit(jax.vmap(run))(jr.split(jr.key(0), num_runs)))
    return np.mean(losses), np.std(losses) / num_runs**0.5


def test_one_particle_is_the_elbo():
    ours, ours_error = mean_loss(relbo.PointwiseELBO(1), guide)
    theirs, theirs_error = mean_loss(Trace_ELBO(1), guide)
    assert abs(ours - theirs) < 4 * np.hypot(ours_error, theirs_error)


def test_it_is_numpyros_own_where_that_has_it():
    """NumPyro keeps the weights of a plate apart, for guides whose density is site by site."""
    ours, ours_error = mean_loss(relbo.PointwiseELBO(5), guide)
    with jax.numpy_rank_promotion("allow"):
        theirs, theirs_error = mean_loss(RenyiELBO(alpha=0.0, num_particles=5), guide)
    assert abs(ours - theirs) < 4 * np.hypot(ours_error, theirs_error)


def test_more_particles_come_closer_to_the_evidence_and_stay_below():
    few, few_error = mean_loss(relbo.PointwiseELBO(2), guide)
    many, many_error = mean_loss(relbo.PointwiseELBO(100), guide)
    assert many < few - 4 * np.hypot(few_error, many_error)
    np.testing.assert_allclose(-many, exact_log_evidence(DATA), atol=0.02)
    assert -many < exact_log_evidence(DATA) + 4 * many_error


def test_a_refined_guide_gives_a_tighter_bound():
    refined = relbo.refine(
        guide, model, kernel=relbo.SGD(0.2), entropy=relbo.Gaussian(), num_steps=3
    )
    handlers.seed(refined, 0)(DATA)
    plain, plain_error = mean_loss(relbo.PointwiseELBO(2), guide)
    ours, error = mean_loss(relbo.PointwiseELBO(2), refined)
    assert ours < plain - 4 * np.hypot(error, plain_error)
    assert -ours < exact_log_evidence(DATA) + 4 * error


def test_a_minibatch_stands_for_all_the_data():
    few, few_error = mean_loss(relbo.PointwiseELBO(3), guide)
    many, many_error = mean_loss(relbo.PointwiseELBO(3), guide, num_points=40)
    assert abs(many - 10 * few) < 4 * np.hypot(10 * few_error, many_error)


def test_latent_values_of_all_points_together_are_refused():
    def shared_model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    def shared_guide(x):
        numpyro.sample("mean", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"\['mean'\] are in no plate"):
        relbo.PointwiseELBO().loss(jr.key(0), {}, shared_model, shared_guide, DATA)


def test_nothing_to_take_rows_of_is_refused():
    with pytest.raises(ValueError, match="needs data"):
        relbo.PointwiseELBO().loss(jr.key(0), {}, model, guide, 3.0)
    with pytest.raises(ValueError, match="num_particles: expected at least 1, got 0"):
        relbo.PointwiseELBO(0)


def test_huge_weights_make_a_huge_loss_and_no_infinity():
    """Of 1e10 a point: what is lost by rounding there is large in an exponent."""
    plate = lambda x, num_points: numpyro.plate("points", num_points, subsample_size=len(x))

    def narrow(x, num_points):
        with plate(x, num_points):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(z, 1e-3), obs=x)

    def remote(x, num_points):
        loc = numpyro.param("loc", 200.0)
        with plate(x, num_points):
            numpyro.sample("z", dist.Normal(jnp.full_like(x, loc), 3.0))

    def loss(loc, key):
        found = relbo.PointwiseELBO(5)
        return found.loss(key, {"loc": loc}, narrow, remote, DATA, num_points=50_000)

    run = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))
    losses, slopes = run(200.0, jr.split(jr.key(0), 20))
    # The nearest of five draws is at about 197; the slope of log p is that over 1e-6.
    assert np.all((np.asarray(losses) > 5e14) & (np.asarray(losses) < 1.5e15))
    assert np.all((np.asarray(slopes) > 5e12) & (np.asarray(slopes) < 1.5e13))
