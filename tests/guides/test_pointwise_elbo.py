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


def test_one_draw_gives_the_elbo():
    ours, ours_error = mean_loss(relbo.PointwiseELBO(1), guide)
    theirs, theirs_error = mean_loss(Trace_ELBO(1), guide)
    assert abs(ours - theirs) < 4 * np.hypot(ours_error, theirs_error)


def test_it_equals_the_loss_of_numpyro_for_plain_guides():
    """RenyiELBO separates the weights of a plate where each site has its own density."""
    ours, ours_error = mean_loss(relbo.PointwiseELBO(5), guide)
    with jax.numpy_rank_promotion("allow"):
        theirs, theirs_error = mean_loss(RenyiELBO(alpha=0.0, num_particles=5), guide)
    assert abs(ours - theirs) < 4 * np.hypot(ours_error, theirs_error)


def test_more_draws_give_a_tighter_bound():
    few, few_error = mean_loss(relbo.PointwiseELBO(2), guide)
    many, many_error = mean_loss(relbo.PointwiseELBO(100), guide)
    assert many < few - 4 * np.hypot(few_error, many_error)
    np.testing.assert_allclose(-many, exact_log_evidence(DATA), atol=0.02)
    assert -many < exact_log_evidence(DATA) + 4 * many_error


def test_a_refined_guide_gives_a_tighter_bound():
    refinement = relbo.Refinement(relbo.SGD(0.2), relbo.GaussianAccount(), num_steps=3)
    refined = relbo.refine(guide, model, refinement=refinement)
    handlers.seed(refined, 0)(DATA)
    plain, plain_error = mean_loss(relbo.PointwiseELBO(2), guide)
    ours, error = mean_loss(relbo.PointwiseELBO(2), refined)
    assert ours < plain - 4 * np.hypot(error, plain_error)
    assert -ours < exact_log_evidence(DATA) + 4 * error


def test_a_minibatch_stands_for_all_the_data():
    few, few_error = mean_loss(relbo.PointwiseELBO(3), guide)
    many, many_error = mean_loss(relbo.PointwiseELBO(3), guide, num_points=40)
    assert abs(many - 10 * few) < 4 * np.hypot(10 * few_error, many_error)


def test_global_latent_values_are_refused():
    def shared_model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("points", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    def shared_guide(x):
        numpyro.sample("mean", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"\['mean'\] are in no plate"):
        relbo.PointwiseELBO().loss(jr.key(0), {}, shared_model, shared_guide, DATA)


def test_calls_without_data_are_refused():
    with pytest.raises(ValueError, match="needs data"):
        relbo.PointwiseELBO().loss(jr.key(0), {}, model, guide, 3.0)
    with pytest.raises(ValueError, match="num_draws: expected an integer of 1 or more, got 0"):
        relbo.PointwiseELBO(0)


def test_huge_weights_give_a_finite_loss():
    """With log weights of -1e10, rounding errors are large in an exponent."""
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
    # The nearest of five draws is at about 197, and the slope of log p is 197 / 1e-6.
    assert np.all((np.asarray(losses) > 5e14) & (np.asarray(losses) < 1.5e15))
    assert np.all((np.asarray(slopes) > 5e12) & (np.asarray(slopes) < 1.5e13))
