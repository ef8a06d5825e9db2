"""Minibatches, plates and local latent values."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import SVI, Trace_ELBO, autoguide

import relbo
from programs import (
    DATA,
    NUM,
    conjugate,
    conjugate_evidence,
    elbos,
    encoder,
    fit,
    local,
    local_evidence,
    prepare,
)
from targets import mean_and_error


def test_subsampling_global_latents_stays_a_bound():
    guide = relbo.AutoRefined(conjugate, num_steps=2)
    params = fit(conjugate, guide, DATA, 5, num_iterations=300)
    assert guide.bound.valid is True
    values = elbos(conjugate, guide, params, DATA, 5, num_draws=20_000)
    mean, error = mean_and_error(values)
    assert mean < conjugate_evidence() + 4 * error
    assert mean > conjugate_evidence() - 2.5


def given_batch(batch):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    numpyro.deterministic("double", 2 * mu)
    with numpyro.plate("data", NUM, subsample_size=len(batch)):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=batch)


def test_a_minibatch_in_the_arguments_may_change_its_size_and_is_not_a_bound():
    """The kernel and the loss see the same minibatch."""
    guide = relbo.AutoRefined(given_batch, num_steps=2)
    svi, state, params = prepare(given_batch, guide, DATA[:10])
    assert jnp.isfinite(jax.jit(svi.evaluate)(state, DATA[:5]))
    assert guide.bound.valid is False
    assert "minibatch" in guide.bound.reason
    draws = guide.sample_posterior(jr.key(0), params, DATA[:10])
    np.testing.assert_allclose(draws["double"], 2 * draws["mu"])


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_local_latent_values(batch_size):
    """Each value has the posterior N(0.8 x, sd 0.894), whatever the batch size."""
    guide = relbo.AutoRefined(local, base=autoguide.AutoNormal, num_steps=2)
    params = fit(local, guide, DATA, batch_size, num_iterations=600)
    assert guide.bound.valid is True
    mean, error = mean_and_error(elbos(local, guide, params, DATA, batch_size))
    assert mean < local_evidence() + 4 * error
    assert mean > local_evidence() - 2.0
    # All values are drawn, whatever the size of a minibatch.
    draws = guide.sample_posterior(jr.key(0), params, DATA, batch_size, sample_shape=(1000,))[
        "z"
    ]
    assert draws.shape == (1000, NUM)
    np.testing.assert_allclose(jnp.mean(draws, 0), 0.8 * DATA, atol=0.6)
    assert jnp.mean(jnp.std(draws, 0)) == pytest.approx(0.894, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 5])
def test_refined_encoder_is_near_the_evidence(batch_size):
    guide = relbo.refine(encoder, local, num_steps=2)
    params = fit(local, guide, DATA, batch_size, num_iterations=300)
    mean, error = mean_and_error(elbos(local, guide, params, DATA, batch_size))
    assert mean < local_evidence() + 4 * error
    assert mean > local_evidence() - 0.5
    assert {"slope", "scale", "refined_step_size"} <= set(params)
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(1000,))["z"]
    np.testing.assert_allclose(jnp.mean(draws, 0), 0.8 * DATA, atol=0.3)


def test_gradients_reach_the_encoder_the_decoder_and_the_step_size():
    def decoder(data, batch_size=None):
        gain = numpyro.param("gain", 1.0)
        with numpyro.plate("data", NUM, subsample_size=batch_size):
            batch = numpyro.subsample(data, 0)
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(gain * z, 1.0), obs=batch)

    guide = relbo.refine(encoder, decoder, num_steps=2)
    svi, state, before = prepare(decoder, guide, DATA)
    after = svi.get_params(jax.jit(svi.update)(state, DATA)[0])
    for name in ("slope", "scale", "gain", "refined_step_size", "refined_damping"):
        assert not np.allclose(before[name], after[name]), name


def nested(size=5):
    """A global value and local ones in two plates, one of which is subsampled."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    with numpyro.plate("inner", 10, subsample_size=size, dim=-1):
        with numpyro.plate("outer", 4, dim=-2):
            shift = numpyro.sample("shift", dist.LogNormal(jnp.zeros(2), 1.0).to_event(1))
            mean = centre + jnp.sum(shift, -1)
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=jnp.ones((4, size)))


def test_local_latent_values_in_two_plates():
    guide = relbo.AutoRefined(nested, num_steps=2)
    svi, state, params = prepare(nested, guide)
    assert jnp.isfinite(jax.jit(svi.evaluate)(state))
    assert guide.bound.valid is True
    draw = lambda size: jax.eval_shape(
        lambda key: guide.sample_posterior(key, params, size), jr.key(1)
    )
    draws = {name: draw.shape for name, draw in draw(10).items()}
    assert draws == {"centre": (), "shift": (4, 10, 2)}
    with pytest.raises(ValueError, match="need all the data"):
        draw(5)


def test_plates_that_subsample_at_different_rates_are_refused():
    def program():
        with numpyro.plate("rows", 10, subsample_size=5):
            numpyro.sample("x", dist.Normal(0.0, 1.0))
            with numpyro.plate("columns", 20, subsample_size=10):
                numpyro.sample("y", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"\['x', 'y'\] are in plates that subsample"):
        prepare(program, relbo.AutoRefined(program, num_steps=2))


SERIES, LENGTH = 12, 4


def walks(series, rows, size=SERIES):
    """A random walk for each series: the local values are in a plate inside a scan."""
    drift = numpyro.sample("drift", dist.LogNormal(-1.0, 0.5))
    with handlers.substitute(data={"series": rows}):
        plate = numpyro.plate("series", size, subsample_size=len(rows))

    def step(state, observed):
        with plate:
            state = numpyro.sample("state", dist.Normal(state, drift))
            numpyro.sample("x", dist.Normal(state, 1.0), obs=observed)
        return state, None

    scan(step, jnp.zeros(len(rows)), series, length=LENGTH)


def plates_of_walks(series, rows, size=SERIES):
    with handlers.substitute(data={"series": rows}):
        return numpyro.plate("series", size, subsample_size=len(rows))


def test_plates_made_by_the_user_around_a_scan():
    series = jr.normal(jr.key(0), (LENGTH, SERIES))
    guide = relbo.AutoRefined(walks, num_steps=1, create_plates=plates_of_walks)
    svi = SVI(walks, guide, optax.adam(0.05), Trace_ELBO())
    state = svi.init(jr.key(0), series[:, :5], jnp.arange(5))
    before = svi.get_params(state)["state_auto_loc"]
    rows = jnp.arange(8, 12)  # another number of them than at the start
    state, loss = jax.jit(svi.update)(state, series[:, rows], rows)
    assert jnp.isfinite(loss)
    moved = jnp.any(svi.get_params(state)["state_auto_loc"] != before, axis=0)
    np.testing.assert_array_equal(moved, jnp.arange(SERIES) >= 8)
