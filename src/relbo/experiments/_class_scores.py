"""How likely an image is in each class, under a conditional autoencoder."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers

from relbo._program import Call
from relbo.bases import DiagonalNormal
from relbo.elbo import log_weight
from relbo.entropy import Gaussian
from relbo.evaluate import LatentVariableModel
from relbo.evaluate.importance import log_mean, map_batched
from relbo.experiments._image_rows import MAX_SCORE
from relbo.guides import refine
from relbo.kernels import SGD
from relbo.models import Autoencoder

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
    r"""$\log p(x \mid y)$ of each image in each class, from importance weights of a guide.

    Args:
        key: a random key.
        vae: a conditional model, or a plain one that each class has its own parameters of.
        guide: a guide of it, refined or not.
        params: as learned; of a plain model with the classes along the first axis of each leaf.
        images: `[n, pixels]`.
        num_draws: K, for each image and class.
        batch_size: images at once.
    """

    def one(params: Params, key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        data = (image[None], label[None])
        if vae.num_classes is None:
            params, data = jax.tree.map(lambda leaf: leaf[label], params), data[:1]
        return log_weight(key, params, vae.model, guide, Call(data, {}))

    number = vae.num_classes or len(jax.tree.leaves(params)[0])
    return _of_all(key, one, params, number, jnp.asarray(images), num_draws, batch_size)


def with_steps(
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    *,
    num_steps: int,
    step_size: float,
) -> tuple[Any, Params]:
    """The encoder with steps on its mean, whatever it was trained with, and its parameters.

    Of an image unlike the others the encoder guesses the code badly, and then the evidence of
    its own class is too low.

    Args:
        vae: the model.
        params: as learned; the steps' own are left out.
        images: some that it is to be used for.
        num_steps: T.
        step_size: in the encoder's own units.
    """
    guide = refine(
        vae.guide,
        vae.model,
        kernel=SGD(step_size),
        entropy=Gaussian(),
        num_steps=num_steps,
        space="whitened",
        max_score=MAX_SCORE,
        anneal=False,
    )
    labels = () if vae.num_classes is None else (jnp.zeros(1, int),)
    with handlers.block(), handlers.seed(rng_seed=0):
        guide._setup_prototype(images[:1], *labels)
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
    r"""$\log \frac1K \sum_k p(x \mid z_k, y)$ over the encoder's draws, as the paper has it.

    The draws are refined by ascent without noise. It is no evidence: the draws come from the
    posterior, not from the prior, and no weight makes up for it.

    Args:
        key: a random key.
        vae: a conditional model.
        params: as learned.
        images: `[n, pixels]`.
        num_draws: K, for each image and class.
        step_size: of the ascent.
        num_steps: of the ascent, T at test time.
        batch_size: images at once.
    """

    def one(params: Params, key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        encoder, loglikelihood = vae.encoder_from(params), vae.loglikelihood_from(params)
        model = LatentVariableModel(loglikelihood)
        condition = jax.nn.one_hot(label, vae.num_classes or 0)
        loc, scale = encoder(image.astype(jnp.result_type(float)), condition)
        start, _ = DiagonalNormal(loc, scale).sample(key)
        climb = lambda _, z: z + step_size * jax.grad(model)(z, (image, label))
        refined = jax.lax.fori_loop(0, num_steps, climb, start)
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
    """The logarithm of a mean over draws, for every image and class."""

    def of_class(key: PRNGKeyArray, image: Array, label: Array) -> Scalar:
        keys = jr.split(key, num_draws)
        return log_mean(jax.vmap(lambda k: one(params, k, image, label))(keys)).value

    def of_image(inputs: tuple[PRNGKeyArray, Array]) -> Float[Array, " classes"]:
        key, image = inputs
        keys, labels = jr.split(key, num_classes), jnp.arange(num_classes)
        return jax.vmap(of_class, (0, None, 0))(keys, image, labels)

    return map_batched(of_image, (jr.split(key, len(images)), images), batch_size)
