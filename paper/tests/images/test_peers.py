"""The other methods of the paper's table, compared with closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO

from relbo_paper.images.peers import (
    NUM_MIXED,
    NUM_NOISE,
    SIVI,
    UIVI,
    ContrastiveDivergence,
    HamiltonianChains,
    HamiltonianDLGM,
    _DrawnCode,
)
from relbo_paper.models import autoencoder
from relbo_paper.models.networks import DenseLayers

NUM_PIXELS, NUM_LATENTS = 6, 2


class LinearNoise(eqx.Module):
    """A noisy encoder whose mixture is a normal."""

    matrix: jax.Array

    def mean(self, seen, noise):
        return seen + self.matrix @ noise


class LinearEncoder(eqx.Module):
    weights: jax.Array
    log_scale: jax.Array

    def __call__(self, image):
        return image @ self.weights, jnp.exp(self.log_scale)


def images(number=4):
    return jr.bernoulli(jr.key(9), 0.4, (number, NUM_PIXELS)).astype(jnp.float32)


def drawn_and_noise(key, encoder, scale):
    noise_key, draw_key = jr.split(key)
    noise = jr.normal(noise_key, (NUM_NOISE,))
    seen = jnp.zeros(NUM_LATENTS)
    value = encoder.mean(seen, noise) + scale * jr.normal(draw_key, (NUM_LATENTS,))
    return _DrawnCode(encoder, seen, scale, value), noise


def test_chains_leave_their_target_invariant():
    scale = jnp.array([0.5, 2.0])
    law = dist.Normal(1.0, scale).to_event(1)
    start = jax.vmap(law.sample)(jr.split(jr.key(0), 4000))
    log_density = jax.vmap(law.log_prob)
    moved = HamiltonianChains(step_size=0.8).run(jr.key(1), log_density, start, scale)
    assert not np.allclose(moved, start)
    # Five standard errors of a mean and of a variance.
    np.testing.assert_allclose(moved.mean(0), 1.0, atol=5 * 2.0 / 4000**0.5)
    np.testing.assert_allclose(
        np.var(moved, axis=0) / scale**2, 1.0, atol=5 * (2 / 4000) ** 0.5
    )


def test_chains_reject_huge_steps():
    start = jr.normal(jr.key(0), (200, 2))
    log_density = lambda z: -0.5 * jnp.sum(jnp.square(z), axis=-1)
    wild = HamiltonianChains(step_size=50.0).run(jr.key(1), log_density, start, 1.0)
    np.testing.assert_array_equal(wild, start)


def test_uivi_has_the_score_of_the_mixture():
    """It is not the score given the noise, which is uncorrelated with the noise."""
    encoder = LinearNoise(0.4 * jr.normal(jr.key(3), (NUM_LATENTS, NUM_NOISE)))
    # A trajectory is about a quarter of a period here, so the chain mixes fast.
    scale = jnp.array([1.0, 1.1])
    guide = UIVI(NUM_PIXELS, NUM_LATENTS, (5,))

    def slope(key):
        draw_key, chain_key = jr.split(key)
        drawn, noise = drawn_and_noise(draw_key, encoder, scale)
        log_q = lambda z: guide._log_q(chain_key, drawn._replace(value=z), noise)
        return jax.grad(log_q)(drawn.value), drawn.value, noise

    slopes, values, noises = jax.jit(jax.vmap(slope))(jr.split(jr.key(4), 4000))
    # Stein's identity: for any density, the mean of the score times z is minus one.
    products = slopes[:, :, None] * values[:, None, :]
    stderr = np.std(products, axis=0) / 4000**0.5
    assert np.all(np.abs(products.mean(0) + np.eye(2)) < 4 * stderr)
    # The score of the mixture, -M^-1 z, is correlated with the noise.
    matrix = encoder.matrix
    exact = -np.linalg.solve(matrix @ matrix.T + jnp.diag(scale**2), matrix)
    found = np.mean(slopes[:, :, None] * noises[:, None, :], axis=0)
    assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact)


def test_sivi_has_the_density_of_a_mixture():
    encoder = LinearNoise(0.4 * jr.normal(jr.key(3), (NUM_LATENTS, NUM_NOISE)))
    drawn, noise = drawn_and_noise(jr.key(5), encoder, jnp.array([0.5, 0.8]))
    log_q = SIVI(NUM_PIXELS, NUM_LATENTS, (5,))._log_q(jr.key(6), drawn, noise)
    noises = jnp.concatenate([noise[None], jr.normal(jr.key(6), (NUM_MIXED, NUM_NOISE))])
    components = dist.MixtureSameFamily(
        dist.Categorical(logits=jnp.zeros(NUM_MIXED + 1)),
        dist.Normal(noises @ encoder.matrix.T, drawn.scale[None]).to_event(1),
    )
    np.testing.assert_allclose(log_q, components.log_prob(drawn.value), rtol=1e-5)


def conjugate():
    """A linear model with normal likelihood whose encoder is the exact posterior."""
    matrix = jr.normal(jr.key(1), (NUM_LATENTS, NUM_PIXELS))

    def decoder(key):
        layers = DenseLayers((NUM_LATENTS, NUM_PIXELS), key=key)
        where = lambda one: (one.weights, one.biases)
        return eqx.tree_at(where, layers, ((matrix,), (jnp.zeros(NUM_PIXELS),)))

    # With orthogonal rows the posterior is a product of normals.
    rows = jnp.linalg.qr(matrix.T)[0].T
    precision = 1.0 + jnp.sum(jnp.square(rows), axis=1)
    vae = autoencoder(
        num_pixels=NUM_PIXELS,
        num_latents=NUM_LATENTS,
        decoder=lambda key: eqx.tree_at(lambda one: one.weights, decoder(key), (rows,)),
        encoder=lambda key: LinearEncoder(rows.T / precision[None], -0.5 * jnp.log(precision)),
        likelihood=lambda mean: dist.Normal(mean, 1.0).to_event(1),
    )
    weights = lambda network: eqx.filter(network, eqx.is_inexact_array)
    params = {
        "encoder$params": weights(vae.encoder),
        "decoder$params": weights(vae.decoder),
    }
    return vae, params


@pytest.mark.parametrize("peer", [HamiltonianDLGM, ContrastiveDivergence])
def test_gradients_vanish_for_an_exact_encoder(peer):
    vae, params = conjugate()
    batch = jr.normal(jr.key(2), (4, NUM_PIXELS))
    loss = peer(vae)
    value = lambda params, key: loss.loss(key, params, vae.model, vae.guide, batch)
    gradient = jax.jit(jax.vmap(jax.grad(value), (None, 0)))
    found = gradient(params, jr.split(jr.key(3), 2000))["encoder$params"]
    for leaf in jax.tree.leaves(found):
        stderr = np.std(leaf, axis=0) / 2000**0.5
        assert np.all(np.abs(np.mean(leaf, axis=0)) < 4.5 * stderr + 1e-5)


def test_contrastive_divergence_is_zero_without_steps():
    vae, params = conjugate()
    wrong = jax.tree.map(lambda leaf: leaf + 0.3, params["encoder$params"])
    params = {**params, "encoder$params": wrong}
    batch = jr.normal(jr.key(2), (4, NUM_PIXELS))
    gradient_of = lambda loss: jax.jit(
        jax.vmap(
            jax.grad(lambda p, key: loss.loss(key, p, vae.model, vae.guide, batch)), (None, 0)
        )
    )(params, jr.split(jr.key(3), 4000))["encoder$params"]
    stays = gradient_of(ContrastiveDivergence(vae, HamiltonianChains(num_trajectories=0)))
    for leaf in jax.tree.leaves(stays):
        stderr = np.std(leaf, axis=0) / 4000**0.5
        assert np.all(np.abs(np.mean(leaf, axis=0)) < 4.5 * stderr)
    moves = gradient_of(ContrastiveDivergence(vae))
    assert any(
        np.any(np.abs(np.mean(leaf, axis=0)) > 10 * np.std(leaf, axis=0) / 4000**0.5)
        for leaf in jax.tree.leaves(moves)
    )


@pytest.mark.parametrize("peer", [HamiltonianDLGM, ContrastiveDivergence])
def test_decoder_follows_the_gradient_of_the_evidence(peer):
    """If the chain samples the posterior, the gradient is that of the log evidence."""
    vae, params = conjugate()
    batch = jr.normal(jr.key(2), (4, NUM_PIXELS))
    loss = peer(vae)
    value = lambda params, key: loss.loss(key, params, vae.model, vae.guide, batch)
    gradient = jax.jit(jax.vmap(jax.grad(value), (None, 0)))
    found = gradient(params, jr.split(jr.key(3), 2000))["decoder$params"].weights[0]

    def evidence(matrix):
        covariance = matrix.T @ matrix + jnp.eye(NUM_PIXELS)
        law = dist.MultivariateNormal(jnp.zeros(NUM_PIXELS), covariance)
        return jnp.sum(jax.vmap(law.log_prob)(batch))

    exact = -jax.grad(evidence)(params["decoder$params"].weights[0])
    stderr = np.std(found, axis=0) / 2000**0.5
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 4.5 * stderr)


@pytest.mark.parametrize("kind", [SIVI, UIVI])
def test_semi_implicit_guides_scale_to_the_whole_data(kind):
    vae = autoencoder(num_pixels=NUM_PIXELS, num_latents=NUM_LATENTS, hidden_sizes=(5,))
    guide = kind(NUM_PIXELS, NUM_LATENTS, (5, 5))
    weights = lambda network: eqx.filter(network, eqx.is_inexact_array)
    params = {
        "noisy_encoder$params": weights(guide.example),
        "decoder$params": weights(vae.decoder),
    }
    loss = lambda number: Trace_ELBO().loss(
        jr.key(0), params, vae.model, guide, images(), num_images=number
    )
    # Operation by operation, each would be compiled on its own.
    large, small = jax.jit(lambda: (loss(40), loss(4)))()
    np.testing.assert_allclose(large, 10 * small, rtol=1e-5)
