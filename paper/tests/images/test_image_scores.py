"""Estimates of log p(x) on a linear model, where it is known."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import relbo
from relbo_paper.images.scores import (
    annealed_loglikelihood,
    fitted_loglikelihood,
    paper_estimate,
    refined_draws,
    share_folded,
)
from relbo_paper.models import autoencoder

NUM_PIXELS, NUM_LATENTS, NOISE = 5, 2, 0.5


@pytest.fixture(scope="module")
def linear():
    return linear_model(NUM_PIXELS, NUM_LATENTS)


def linear_model(num_pixels, num_latents):
    """A model, its guide, parameters, images, and the exact log p of each."""
    vae = autoencoder(
        num_pixels=num_pixels,
        num_latents=num_latents,
        hidden_sizes=(4,),
        decoder=partial(eqx.nn.Linear, num_latents, num_pixels),
        likelihood=lambda mean: dist.Normal(mean, NOISE).to_event(1),
    )
    refinement = relbo.Refinement(
        relbo.SGD(0.05), relbo.GaussianAccount(), num_steps=3, anneal=False
    )
    guide = relbo.refine(vae.guide, vae.model, refinement=refinement)
    images = np.asarray(jr.normal(jr.key(1), (4, num_pixels)))
    trace = handlers.trace(handlers.seed(guide, 0)).get_trace(images)
    params = {name: s["value"] for name, s in trace.items() if s["type"] == "param"}
    network = vae.decoder_from(params)
    covariance = network.weight @ network.weight.T + NOISE**2 * jnp.eye(num_pixels)
    exact = jax.vmap(dist.MultivariateNormal(network.bias, covariance).log_prob)(images)
    return vae, guide, params, images, np.asarray(exact)


def estimate(vae, guide, params, images, **options):
    draw_key, weigh_key = jr.split(jr.key(2))
    number = 5 * vae.num_latents
    draws = refined_draws(draw_key, guide, params, images, num_draws=number)
    return fitted_loglikelihood(weigh_key, vae, params, images, draws, **options)


def test_fitted_importance_sampling_is_exact(linear):
    vae, guide, params, images, exact = linear
    found = estimate(vae, guide, params, images)
    np.testing.assert_allclose(found.values, exact, atol=0.05)
    assert found.valid_bound


def test_rounds_correct_a_wrong_encoder(linear):
    vae, _, params, images, exact = linear
    layers = params["encoder$params"].loc
    moved = eqx.tree_at(
        lambda e: e.loc.biases[-1], params["encoder$params"], layers.biases[-1] + 4.0
    )
    far = {**params, "encoder$params": moved}
    errors = []
    for num_rounds in (0, 6):
        found = estimate(vae, vae.guide, far, images, num_draws=100, num_rounds=num_rounds)
        errors.append(float(np.max(np.abs(found.values - exact))))
    assert errors[1] < 0.15 < errors[0]


@pytest.mark.slow
def test_longer_codes_need_more_draws_per_round():
    vae, _, params, images, exact = linear_model(30, 20)
    errors = []
    for number in (125, None):
        found = estimate(
            vae,
            vae.guide,
            params,
            images,
            num_draws=500,
            num_rounds=12,
            num_round_draws=number,
        )
        errors.append(float(np.mean(np.abs(found.values - exact))))
    assert errors[1] < 0.3 < errors[0]


def test_annealing_is_exact(linear):
    vae, _, params, images, exact = linear
    found = annealed_loglikelihood(jr.key(3), vae, params, images, num_temperatures=100)
    assert np.all(np.abs(found.values - exact) < 4 * found.stderrs + 0.02)


def test_draws_depend_on_their_own_image_only(linear):
    _, guide, params, images, _ = linear
    options = {"num_draws": 7, "batch_size": 3}
    draws = refined_draws(jr.key(4), guide, params, images, **options)
    assert draws.shape == (4, 7, NUM_LATENTS)
    changed = images.copy()
    changed[2] += 1.0
    others = refined_draws(jr.key(4), guide, params, changed, **options)
    same = np.all(np.asarray(draws) == np.asarray(others), axis=(1, 2))
    assert same.tolist() == [True, True, False, True]


def test_papers_estimate_rewards_the_spread_of_the_encoder(linear):
    """If the steps reach the mode, a wider encoder raises the estimate by its log scale."""
    vae, _, params, images, exact = linear
    estimate = partial(
        paper_estimate, jr.key(5), vae, images=images, step_size=0.05, num_steps=500
    )
    # With zero weights in the network of the scale, its bias alone determines it.
    layers = params["encoder$params"].scale
    flat = eqx.tree_at(
        lambda e: e.scale.weights,
        params["encoder$params"],
        tuple(jnp.zeros_like(weight) for weight in layers.weights),
    )
    values = []
    for scale in (1.0, 4.0):
        bias = jnp.full(NUM_LATENTS, jnp.log(jnp.expm1(scale)))
        wide = eqx.tree_at(lambda e: e.scale.biases[-1], flat, bias)
        values.append(estimate(params={**params, "encoder$params": wide}))
    np.testing.assert_allclose(
        values[1] - values[0], NUM_LATENTS * np.log(4.0), rtol=1e-3, atol=1e-3
    )
    assert np.all(values[1] > exact)


@pytest.mark.parametrize(("which", "share"), [("short", 0.0), ("between", 1.0)])
def test_long_steps_fold_space(linear, which, share):
    """A linear model has constant curvature: a step folds all codes or none."""
    vae, _, params, images, _ = linear
    weight = vae.decoder_from(params).weight
    low, high = jnp.linalg.eigvalsh(jnp.eye(NUM_LATENTS) + weight.T @ weight / NOISE**2)
    step_size = {"short": 0.9 / high, "between": 2 / (low + high)}[which]
    refinement = relbo.Refinement(
        relbo.SGD(float(step_size)),
        relbo.ChangeOfVariablesAccount(),
        num_steps=1,
        space="unconstrained",
        anneal=False,
    )
    guide = relbo.refine(vae.guide, vae.model, refinement=refinement)
    trace = handlers.trace(handlers.seed(guide, 0)).get_trace(images[:1])
    networks = {name: value for name, value in params.items() if name.endswith("$params")}
    own = {name: s["value"] for name, s in trace.items() if s["type"] == "param"}
    found = share_folded(jr.key(0), guide, {**own, **networks}, images, num_draws=10)
    np.testing.assert_array_equal(found, np.full(len(images), share))
