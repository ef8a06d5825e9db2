"""The log evidence of each class for an image, under a conditional autoencoder."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.util import log_density

from relbo import SGD, DiagonalNormal, GaussianAccount, Refinement, refine
from relbo.evaluate import LatentVariableModel, log_mean
from relbo_paper.images.rows import MAX_SCORE
from relbo_paper.images.scores import map_batched
from relbo_paper.models import Autoencoder

Params = dict[str, PyTree]


def class_evidence(
    key: PRNGKeyArray,
    vae: Autoencoder,
    guide: Any,
    params: Params,
    images: np.ndarray,
    *,
    num_draws: int,
    batch_size: int = 100,
) -> Float[Array, "n classes"]:
    r"""Estimates $\log p(x \mid y)$ of each image in each class by importance weighting.

    Args:
        key: a random key.
        vae: a conditional model, or a plain model of which each class has its own parameters.
        guide: a guide of the model, refined or not.
        params: the learned parameters; of a plain model, with the classes along the first axis
            of each leaf.
        images: `[n, pixels]`.
        num_draws: K, the number of draws for each image and class.
        batch_size: number of images at a time.
    """

    def one(params: Params, key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        data = (image[None], label[None])
        if vae.num_classes is None:
            params, data = jax.tree.map(lambda leaf: leaf[label], params), data[:1]
        return _log_weight(key, params, vae.model, guide, data)

    number = vae.num_classes or len(jax.tree.leaves(params)[0])
    return _of_all(key, one, params, number, jnp.asarray(images), num_draws, batch_size)


def _log_weight(
    key: PRNGKeyArray, params: Params, model: Any, guide: Any, data: tuple
) -> Scalar:
    """Draws from the guide and returns log p(x, z) - log q(z)."""
    guide_key, model_key = jr.split(key)
    log_q, trace = log_density(handlers.seed(guide, guide_key), data, {}, params)
    replayed = handlers.replay(handlers.seed(model, model_key), trace)
    log_p, _ = log_density(replayed, data, {}, params)
    return jnp.asarray(log_p - log_q)


def with_steps(
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    *,
    num_steps: int,
    step_size: float,
) -> tuple[Any, Params]:
    """Returns the encoder with steps on its mean, and its parameters.

    The encoder guesses the codes of unusual images badly, and then the evidence of their own
    class is too low. The steps correct this, whatever the encoder was trained with.

    Args:
        vae: the model.
        params: the learned parameters; those of the steps in training are left out.
        images: some images.
        num_steps: T.
        step_size: the step size in whitened coordinates.
    """
    refinement = Refinement(
        SGD(step_size),
        GaussianAccount(),
        num_steps=num_steps,
        space="whitened",
        max_score=MAX_SCORE,
        anneal=False,
    )
    guide = refine(vae.guide, vae.model, refinement=refinement)
    labels = () if vae.num_classes is None else (jnp.zeros(1, int),)
    # The first call sets the guide up, which is not possible inside a compiled function.
    handlers.seed(guide, 0)(images[:1], *labels)
    networks = {name: value for name, value in params.items() if name.endswith("$params")}
    return guide, networks


def paper_class_scores(
    key: PRNGKeyArray,
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    *,
    num_draws: int,
    step_size: float,
    num_steps: int,
    batch_size: int = 100,
) -> Float[Array, "n classes"]:
    r"""Returns $\log \frac1K \sum_k p(x \mid z_k, y)$ over draws of the encoder, as printed.

    The draws are refined by noiseless ascent. The result is not the evidence of a class: the
    draws come from the posterior and not from the prior, and no weights correct for that.

    Args:
        key: a random key.
        vae: a conditional model.
        params: the learned parameters.
        images: `[n, pixels]`.
        num_draws: K, the number of draws for each image and class.
        step_size: the step size of the ascent.
        num_steps: T at test time, the number of steps of the ascent.
        batch_size: number of images at a time.
    """

    def one(params: Params, key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        encoder, loglikelihood = vae.encoder_from(params), vae.loglikelihood_from(params)
        model = LatentVariableModel(loglikelihood)
        condition = jax.nn.one_hot(label, vae.num_classes or 0)
        loc, scale = encoder(image.astype(jnp.result_type(float)), condition)
        start, _ = DiagonalNormal(loc, scale).sample(key)
        ascend = lambda _, z: z + step_size * jax.grad(model)(z, (image, label))
        refined = jax.lax.fori_loop(0, num_steps, ascend, start)
        return loglikelihood(refined, (image, label))

    number = vae.num_classes or 0
    return _of_all(key, one, params, number, jnp.asarray(images), num_draws, batch_size)


@eqx.filter_jit
def _of_all(
    key: PRNGKeyArray,
    one: Any,
    params: Params,
    num_classes: int,
    images: Array,
    num_draws: int,
    batch_size: int,
) -> Float[Array, "n classes"]:
    """Computes the log mean of `exp(one(...))` over draws, for every image and class."""

    def of_class(key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        keys = jr.split(key, num_draws)
        return log_mean(jax.vmap(lambda k: one(params, k, image, label))(keys)).value

    def of_image(inputs: tuple[PRNGKeyArray, Array]) -> Float[Array, " classes"]:
        key, image = inputs
        keys, labels = jr.split(key, num_classes), jnp.arange(num_classes)
        return jax.vmap(of_class, (0, None, 0))(keys, image, labels)

    return map_batched(of_image, (jr.split(key, len(images)), images), batch_size)
