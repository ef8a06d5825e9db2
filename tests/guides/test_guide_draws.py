"""Draws, medians and predictions of refined guides."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO

import relbo
from programs import DATA, FEATURES, LABELS, conjugate, fit, regression


@pytest.fixture(scope="module")
def fitted():
    with jax.numpy_rank_promotion("allow"):
        guide = relbo.AutoRefined(regression, num_steps=2)
        return guide, fit(regression, guide, FEATURES, LABELS, num_iterations=300)


@pytest.fixture(scope="module")
def fitted_conjugate():
    with jax.numpy_rank_promotion("allow"):
        guide = relbo.AutoRefined(conjugate, num_steps=4)
        return guide, fit(conjugate, guide, DATA)


def test_new_arguments_take_effect(fitted_conjugate):
    """AutoDAIS gets this wrong: it always climbs the density of its first call."""
    guide, params = fitted_conjugate
    here, there = (
        guide.sample_posterior(jr.key(0), params, DATA + shift, sample_shape=(500,))["mu"]
        for shift in (0.0, 1.0)
    )
    # The noise is the same: every draw follows the data, as far as the learned steps go.
    assert jnp.all(there - here > 0.05)


def test_sampling_may_take_more_steps(fitted_conjugate):
    guide, params = fitted_conjugate
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(20,), num_steps=50)
    assert jnp.all(jnp.isfinite(draws["mu"]))
    assert guide.refinement.num_steps == 4
    with pytest.raises(ValueError, match="at least the 4 trained"):
        guide.sample_posterior(jr.key(0), params, DATA, num_steps=1)


def test_median_and_quantiles(fitted):
    guide, params = fitted
    median = guide.median(params, FEATURES, LABELS)
    quantiles = guide.quantiles(params, [0.05, 0.5, 0.95], FEATURES, LABELS)
    low, middle, high = quantiles["weights"]
    np.testing.assert_allclose(middle, median["weights"], rtol=1e-5)
    assert jnp.all((low < middle) & (middle < high))
    np.testing.assert_allclose(median["weights"], [1.0, -0.5], atol=0.3)
    assert set(median) == {"weights", "scale", "norm"}


def test_predictive_of_numpyro(fitted):
    guide, params = fitted
    draws = Predictive(guide, params=params, num_samples=7)(jr.key(0), FEATURES, LABELS)
    assert draws["weights"].shape == (7, 2)
    latents = {name: draws[name] for name in ("weights", "scale")}
    predicted = Predictive(regression, latents)(jr.key(1), FEATURES)
    assert predicted["y"].shape == (7, 12)
    # The guide needs the data, which the predictions must not see.
    kept = guide.with_data(FEATURES, LABELS)
    conditioned = Predictive(regression, guide=kept, params=params, num_samples=50)
    predicted = conditioned(jr.key(1), FEATURES)["y"]
    assert predicted.shape == (50, 12)
    assert jnp.corrcoef(jnp.mean(predicted, 0), LABELS)[0, 1] > 0.9


def test_draws_without_the_data_are_refused(fitted):
    guide, params = fitted
    with pytest.raises(TypeError, match=r"'features'.*draws need its arguments too"):
        guide.sample_posterior(jr.key(0), params)
    with pytest.raises(ValueError, match=r"'y' is latent in this call.*needs? its data"):
        guide.sample_posterior(jr.key(0), params, FEATURES)
    with pytest.raises(ValueError, match=r"'y' is latent in this call"):
        Predictive(regression, guide=guide, params=params, num_samples=2)(jr.key(1), FEATURES)


def test_deterministic_sites_of_other_data(fitted):
    """Draws belong to the training data; predictions may be for other rows."""
    guide, params = fitted
    draws = guide.sample_posterior(jr.key(0), params, FEATURES, LABELS, sample_shape=(5,))
    np.testing.assert_allclose(draws["norm"], jnp.sum(draws["weights"] ** 2, -1), rtol=1e-5)
    del draws["norm"]
    predicted = Predictive(regression, draws)(jr.key(0), 2.0 * FEATURES)
    assert predicted["norm"].shape == (5,)
    assert predicted["y"].shape == (5, 12)


def test_update_is_compiled_once():
    traces = []

    def counted(data):
        traces.append(None)
        conjugate(data)

    guide = relbo.AutoRefined(counted, num_steps=8)
    svi = SVI(counted, guide, optax.adam(0.01), Trace_ELBO())
    state = svi.init(jr.key(0), DATA)
    update = jax.jit(svi.update)
    traces.clear()
    state, _ = update(state, DATA)
    # Once for the kernel, once for the loss itself.
    assert len(traces) == 2
    update(state, DATA + 1)
    assert len(traces) == 2
