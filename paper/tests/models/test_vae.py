"""The autoencoders: their ELBO, gradients, labels, networks and fits."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO

import relbo
from relbo import SGD, SGLD, GaussianAccount, ParticleAccount, ReverseKernelAccount
from relbo.evaluate import LatentVariableModel
from relbo_paper.models import autoencoder, bernoulli_pixels
from relbo_paper.models.networks import NormalEncoder

NUM_IMAGES, NUM_PIXELS, NUM_LATENTS = 6, 12, 3


def tiny(**options):
    return autoencoder(
        num_pixels=NUM_PIXELS, num_latents=NUM_LATENTS, hidden_sizes=(8, 8), **options
    )


def tiny_images():
    return np.asarray(jr.bernoulli(jr.key(7), 0.4, (NUM_IMAGES, NUM_PIXELS)), np.uint8)


def initial_params(*programs, call, num_images=None):
    """Returns the initial parameters of programs."""
    found = {}
    for key, program in enumerate(programs):
        trace = handlers.trace(handlers.seed(program, key)).get_trace(
            *call, num_images=num_images
        )
        found |= {name: s["value"] for name, s in trace.items() if s["type"] == "param"}
    return found


def dense(layers, inputs):
    layers = jax.tree.map(np.asarray, layers)
    *hidden, last = zip(layers.weights, layers.biases, strict=True)
    for weight, bias in hidden:
        inputs = np.maximum(inputs @ weight + bias, 0.0)
    return inputs @ last[0] + last[1]


def test_activation_applies_to_every_hidden_layer():
    image = tiny_images()[0].astype(float)
    plain, other = tiny(), tiny(activation=lambda x: -jax.nn.relu(x))
    # A negated relu is a relu with the next layer's weights negated.
    turned = lambda layers, first: eqx.tree_at(
        lambda layers: layers.weights,
        layers,
        tuple(w if k < first else -w for k, w in enumerate(layers.weights)),
    )
    z = jnp.linspace(-1.0, 1.0, NUM_LATENTS)
    decoded = turned(plain.decoder.layers, 1)(z)
    np.testing.assert_allclose(other.decoder(z), decoded, rtol=1e-5)
    encoder = eqx.tree_at(
        lambda e: (e.loc, e.scale),
        plain.encoder,
        (turned(plain.encoder.loc, 0), turned(plain.encoder.scale, 0)),
    )
    for ours, theirs in zip(other.encoder(image), encoder(image), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def by_hand(decoder, loc, scale, z, image):
    """Returns log p(x, z) - log q(z | x), computed with NumPy."""
    share = 1.0 / (1.0 + np.exp(-dense(decoder.layers, z)))
    log_p = np.sum(np.log(np.where(image == 1, share, 1.0 - share)))
    log_prior = -0.5 * np.sum(z**2 + np.log(2 * np.pi))
    log_q = -0.5 * np.sum(((z - loc) / scale) ** 2 + np.log(2 * np.pi * scale**2))
    return log_p + log_prior - log_q


@pytest.mark.parametrize("num_images", [None, 60])
def test_elbo_equals_a_numpy_implementation(x64, num_images):
    vae, images = tiny(), tiny_images()
    params = initial_params(vae.model, vae.guide, call=(images,), num_images=num_images)
    encoder = vae.encoder_from(params)
    hidden = np.maximum(dense(encoder.first, images), 0.0)
    of_loc, of_scale = np.split(hidden, 2, axis=1)
    locs = dense(encoder.loc, of_loc)
    scales = np.log1p(np.exp(dense(encoder.scale, of_scale)))

    @jax.jit
    def loss_and_draw():
        loss = Trace_ELBO().loss(
            jr.key(3), params, vae.model, vae.guide, images, num_images=num_images
        )
        # The draw of z in the loss.
        _, guide_key = jr.split(jr.key(3))
        guide = handlers.seed(handlers.substitute(vae.guide, data=params), guide_key)
        return loss, handlers.trace(guide).get_trace(images, num_images=num_images)["z"][
            "value"
        ]

    loss, z = loss_and_draw()
    decoder = vae.decoder_from(params)
    total = sum(map(partial(by_hand, decoder), locs, scales, np.asarray(z), images))
    scale = 1.0 if num_images is None else num_images / NUM_IMAGES
    np.testing.assert_allclose(-loss, scale * total, rtol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "account", "loss"),
    [
        (SGD(0.05), GaussianAccount(), relbo.PointwiseELBO(2)),
        (SGLD(0.01), ReverseKernelAccount(), Trace_ELBO(2)),
    ],
    ids=["ascent", "Langevin"],
)
def test_gradients_reach_encoder_decoder_and_step_size(kernel, account, loss):
    vae, images = tiny(), tiny_images()
    refinement = relbo.Refinement(
        kernel, account, num_steps=2, space="unconstrained", anneal=False
    )
    guide = relbo.refine(vae.guide, vae.model, refinement=refinement)
    params = initial_params(guide, vae.model, call=(images,), num_images=60)
    run = lambda p: loss.loss(jr.key(0), p, vae.model, guide, images, num_images=60)
    gradient = jax.jit(jax.grad(run))(params)
    assert set(gradient) == {"decoder$params", "encoder$params", "refined_step_size"}
    for leaf in jax.tree.leaves(gradient):
        assert jnp.all(jnp.isfinite(leaf))
        assert jnp.any(leaf != 0)


def test_conditional_model_uses_the_labels():
    vae, images = tiny(num_classes=4), tiny_images()
    labels = np.arange(NUM_IMAGES) % 4
    params = initial_params(vae.model, vae.guide, call=(images, labels))
    loss = lambda y: Trace_ELBO().loss(jr.key(0), params, vae.model, vae.guide, images, y)
    assert loss(labels) != loss(labels[::-1].copy())
    loglikelihood = vae.loglikelihood_from(params)
    values = [loglikelihood(jnp.ones(NUM_LATENTS), (images[0], y)) for y in range(4)]
    assert len({float(value) for value in values}) == 4
    with pytest.raises(ValueError, match="expected labels after the images, got 0"):
        handlers.seed(vae.model, 0)(images)
    with pytest.raises(ValueError, match="expected images alone, got 1"):
        handlers.seed(tiny().model, 0)(images, labels)


def test_encoder_concatenates_its_inputs(x64):
    encoder = NormalEncoder((NUM_PIXELS + 4, 6, NUM_LATENTS), key=jr.key(0))
    image, label = jr.normal(jr.key(1), (NUM_PIXELS,)), jnp.arange(4.0)
    joined = encoder(jnp.concatenate([image, label]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), encoder(image, label), joined)


class Convolutional(eqx.Module):
    filters: eqx.nn.Conv2d
    head: eqx.nn.Linear

    def __init__(self, num_outputs, *, key):
        filter_key, head_key = jr.split(key)
        self.filters = eqx.nn.Conv2d(1, 2, 2, key=filter_key)
        self.head = eqx.nn.Linear(2 * 2 * 3, num_outputs, key=head_key)

    def __call__(self, image):
        filtered = jax.nn.relu(self.filters(image.reshape(1, 3, 4)))
        loc, scale = jnp.split(self.head(filtered.reshape(-1)), 2)
        return loc, jnp.exp(scale)


def test_other_networks_and_likelihoods_work():
    images = jr.normal(jr.key(0), (NUM_IMAGES, NUM_PIXELS))
    vae = tiny(
        encoder=partial(Convolutional, 2 * NUM_LATENTS),
        decoder=partial(eqx.nn.MLP, NUM_LATENTS, NUM_PIXELS, 5, 1),
        likelihood=lambda mean: dist.Normal(mean, 0.3).to_event(1),
    )
    guide = relbo.refine(vae.guide, vae.model, num_steps=2)
    trained = relbo.fit(
        jr.key(0),
        vae.model,
        (images,),
        {"num_images": NUM_IMAGES},
        guide=guide,
        optimiser=optax.adam(1e-2),
        loss=Trace_ELBO(num_particles=2),
        batch_size=3,
        num_iterations=100,
        progress=False,
    )
    assert np.mean(trained.losses[-10:]) < np.mean(trained.losses[:10])
    z = jnp.zeros(NUM_LATENTS)
    expected = dist.Normal(vae.decoder_from(trained.params)(z), 0.3).log_prob(images[0]).sum()
    value = LatentVariableModel(vae.loglikelihood_from(trained.params))(z, images[0])
    np.testing.assert_allclose(
        value, expected - 0.5 * NUM_LATENTS * np.log(2 * np.pi), rtol=1e-5
    )


def test_every_seed_has_its_own_initial_weights():
    vae = tiny()
    trained = relbo.fit(
        jr.key(0),
        vae.model,
        (tiny_images(),),
        guide=vae.guide,
        optimiser=optax.sgd(0.0),
        num_iterations=1,
        starts=relbo.Starts(num_seeds=2),
        progress=False,
    )
    for name in ("decoder$params", "encoder$params"):
        for leaf in jax.tree.leaves(trained.seed_params[name]):
            assert jnp.all(leaf[0] != leaf[1])


@pytest.mark.parametrize("account", [ParticleAccount(), GaussianAccount()])
def test_guide_declares_whether_it_gives_a_bound(account):
    vae = tiny()
    refinement = relbo.Refinement(SGD(), account, num_steps=1, anneal=False)
    guide = relbo.refine(vae.guide, vae.model, refinement=refinement)
    initial_params(guide, call=(tiny_images(),), num_images=60)
    assert guide.bound.valid is isinstance(account, GaussianAccount)


def test_pixel_density_equals_bernoulli_up_to_second_derivatives(x64):
    logits = jnp.array([-800.0, -3.0, 0.5, 2.0, 800.0])
    pixels = jnp.array([0.0, 1.0, 0.0, 1.0, 1.0])
    ours = lambda x: bernoulli_pixels(x).log_prob(pixels)
    theirs = lambda x: dist.BernoulliLogits(x).to_event(1).log_prob(pixels)
    for derivative in (lambda f: f, jax.grad, jax.hessian):
        np.testing.assert_allclose(
            derivative(ours)(logits), derivative(theirs)(logits), atol=1e-12
        )
