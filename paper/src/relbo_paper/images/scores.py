"""Estimates the log-likelihood of an autoencoder: sound estimators and the paper's."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers

from relbo import DiagonalNormal, StandardNormal
from relbo.evaluate import (
    AnnealingSettings,
    FittedProposal,
    LatentVariableModel,
    PointwiseEvaluation,
    annealed_pointwise,
    fitted_importance,
    log_mean,
)
from relbo_paper.models import Autoencoder

Params = dict[str, PyTree]

NUM_PAPER_DRAWS = 10
NUM_CHAINS, NUM_LEAPFROGS = 4, 5
"""Number of chains per image and of leapfrogs per temperature in annealing."""


def map_batched(function: Callable, inputs: Any, batch_size: int) -> Any:
    """Applies `jax.vmap` in batches, one after the other, so that memory is bounded.

    `jax.lax.map` compiles a separate program for a smaller last batch; here it is filled up.
    """
    number = jax.tree.leaves(inputs)[0].shape[0]
    batch_size = min(batch_size, number)
    index = jnp.arange(-(-number // batch_size) * batch_size) % number
    filled = jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), inputs)
    outputs = jax.lax.map(function, filled, batch_size=batch_size)
    return jax.tree.map(lambda leaf: leaf[:number], outputs)


def default_round_draws(num_draws: int, num_latents: int) -> int:
    """Returns enough draws for a covariance: in proportion to the square of its size."""
    return max(num_draws // 4, 5 * num_latents**2 // 4)


def fitted_loglikelihood(
    key: PRNGKeyArray,
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    draws: Float[Array, "n draws d"],
    *,
    num_draws: int = 1_000,
    num_rounds: int = 6,
    num_round_draws: int | None = None,
    batch_size: int = 16,
) -> PointwiseEvaluation:
    """Estimates log p(x) of each image by importance sampling from a fitted proposal.

    The encoder is not a proposal for a refined model, where it is only the start of a sampler.

    Args:
        key: a random key.
        vae: the model.
        params: the learned parameters.
        images: `[n, pixels]`.
        draws: draws of each image's code from its refined guide; see `refined_draws`.
        num_draws: number of weighted draws per image.
        num_rounds: number of rounds that improve the proposal first. An encoder that was not
            trained to be near the posterior needs several.
        num_round_draws: number of draws per round; see `default_round_draws`.
        batch_size: number of images at a time.
    """
    num_latents = vae.num_latents
    return fitted_importance(
        key,
        LatentVariableModel(vae.loglikelihood_from(params)),
        jnp.asarray(images),
        draws,
        StandardNormal(jnp.zeros(num_latents)),
        num_draws=num_draws,
        proposal=FittedProposal(
            num_rounds=num_rounds,
            num_round_draws=num_round_draws or default_round_draws(num_draws, num_latents),
        ),
        batch_size=batch_size,
        pareto=False,
    )


def annealed_loglikelihood(
    key: PRNGKeyArray,
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    *,
    num_temperatures: int = 500,
    num_chains: int = NUM_CHAINS,
    batch_size: int = 64,
) -> PointwiseEvaluation:
    """Estimates log p(x) of each image by annealed importance sampling from the prior."""
    return annealed_pointwise(
        key,
        LatentVariableModel(vae.loglikelihood_from(params)),
        jnp.asarray(images),
        StandardNormal(jnp.zeros(vae.num_latents)),
        settings=AnnealingSettings(num_temperatures, num_chains, NUM_LEAPFROGS),
        batch_size=batch_size,
    )


def refined_draws(
    key: PRNGKeyArray,
    guide: Any,
    params: Params,
    images: np.ndarray,
    *,
    num_draws: int,
    batch_size: int = 64,
) -> Float[Array, "n draws d"]:
    """Draws the latent code of each image from a guide, refined or not."""
    return _refined_draws(key, guide, params, jnp.asarray(images), num_draws, batch_size)


@eqx.filter_jit
def _refined_draws(
    key: PRNGKeyArray,
    guide: Any,
    params: Params,
    images: Array,
    num_draws: int,
    batch_size: int,
) -> Float[Array, "n draws d"]:
    def draw(key: PRNGKeyArray, image: Array) -> Float[Array, " d"]:
        program = handlers.substitute(handlers.seed(guide, key), data=params)
        with handlers.block():
            return handlers.trace(program).get_trace(image[None])["z"]["value"][0]

    def of_one(inputs: tuple[PRNGKeyArray, Array]) -> Float[Array, "draws d"]:
        key, image = inputs
        return jax.vmap(lambda k: draw(k, image))(jr.split(key, num_draws))

    return map_batched(of_one, (jr.split(key, len(images)), images), batch_size)


def share_folded(
    key: PRNGKeyArray,
    guide: Any,
    params: Params,
    images: np.ndarray,
    *,
    num_draws: int,
    batch_size: int = 64,
) -> Float[Array, " n"]:
    """Returns the share of the draws of each image's code whose steps fold space."""
    share = lambda inputs: guide.share_folded(
        inputs[0], params, inputs[1][None], num_draws=num_draws
    )
    keys = jr.split(key, len(images))
    return eqx.filter_jit(map_batched)(share, (keys, jnp.asarray(images)), batch_size)


def paper_estimate(
    key: PRNGKeyArray,
    vae: Autoencoder,
    params: Params,
    images: np.ndarray,
    *,
    step_size: float,
    num_steps: int,
    batch_size: int = 500,
) -> Float[np.ndarray, " n"]:
    r"""Computes the test log-likelihood of the paper's released code, which is not a bound.

    $$\log \frac{1}{10} \sum_s \frac{p(x, z_T^s)}{N(z_T^s; z_T^s, \sigma)}$$

    The draws are refined by noiseless gradient ascent, and the density in the denominator is
    evaluated at its own centre: as if the draws had the spread of the encoder, however close
    together the steps have moved them.

    Args:
        key: a random key.
        vae: the model.
        params: the learned parameters.
        images: `[n, pixels]`.
        step_size: the step size of the ascent.
        num_steps: T at test time, the number of steps of the ascent.
        batch_size: number of images at a time.
    """
    networks = vae.encoder_from(params), vae.loglikelihood_from(params)
    values = _paper_estimate(
        key, networks, jnp.asarray(images), jnp.asarray(step_size), num_steps, batch_size
    )
    return np.asarray(values)


@eqx.filter_jit
def _paper_estimate(
    key: PRNGKeyArray,
    networks: tuple[Any, Any],
    images: Array,
    step_size: Scalar,
    num_steps: int,
    batch_size: int,
) -> Float[Array, " n"]:
    encoder, loglikelihood = networks
    model = LatentVariableModel(loglikelihood)

    def log_ratio(key: PRNGKeyArray, image: Array) -> Scalar:
        loc, scale = encoder(image.astype(jnp.result_type(float)))
        start, _ = DiagonalNormal(loc, scale).sample(key)
        ascend = lambda _, z: z + step_size * jax.grad(model)(z, image)
        refined = jax.lax.fori_loop(0, num_steps, ascend, start)
        log_density = -jnp.sum(jnp.log(scale) + 0.5 * math.log(2.0 * math.pi))
        return model(refined, image) - log_density

    def of_one(inputs: tuple[PRNGKeyArray, Array]) -> Scalar:
        key, image = inputs
        keys = jr.split(key, NUM_PAPER_DRAWS)
        return log_mean(jax.vmap(lambda k: log_ratio(k, image))(keys)).value

    return map_batched(of_one, (jr.split(key, len(images)), images), batch_size)
