"""What an autoencoder's log-likelihood is, and what the paper's estimator says it is."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers

from relbo._program import played
from relbo.bases import LOG_2PI, DiagonalNormal, StandardNormal
from relbo.evaluate import (
    LatentVariableModel,
    PointwiseEvaluation,
    annealed_pointwise,
    fitted_importance,
)
from relbo.evaluate.importance import log_mean, map_batched
from relbo.models import Autoencoder

Params = dict[str, PyTree]

NUM_PAPER_DRAWS = 10
NUM_CHAINS, NUM_LEAPFROGS = 4, 5
"""Of each image, and gradients at each temperature, where it is annealed."""


def default_round_draws(num_draws: int, num_latents: int) -> int:
    """What a covariance needs, which is in proportion to the square of the length of z."""
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
    """log p(x) of each image by importance sampling, with a proposal fitted to its own draws.

    Importance sampling from the encoder is meaningless for a refined model, whose encoder is
    only where the sampler starts.

    Args:
        key: a random key.
        vae: the model.
        params: as learned.
        images: `[n, pixels]`.
        draws: of each image's code, from its refined guide; see `refined_draws`.
        num_draws: weighted draws of each image.
        num_rounds: before these, to mend the proposal. An encoder that was not trained to be
            near the posterior needs several.
        num_round_draws: of each round; see `default_round_draws`.
        batch_size: images at once.
    """
    num_latents = vae.num_latents
    return fitted_importance(
        key,
        LatentVariableModel(vae.loglikelihood_from(params)),
        jnp.asarray(images),
        draws,
        StandardNormal(jnp.zeros(num_latents)),
        num_draws=num_draws,
        num_rounds=num_rounds,
        num_round_draws=num_round_draws or default_round_draws(num_draws, num_latents),
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
    """log p(x) of each image by annealed importance sampling from the prior."""
    return annealed_pointwise(
        key,
        LatentVariableModel(vae.loglikelihood_from(params)),
        jnp.asarray(images),
        StandardNormal(jnp.zeros(vae.num_latents)),
        num_temperatures=num_temperatures,
        num_chains=num_chains,
        num_leapfrogs=NUM_LEAPFROGS,
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
    """Draws of each image's latent code from a guide, refined or not."""
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
        with played(key, params):
            return handlers.trace(guide).get_trace(image[None])["z"]["value"][0]

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
    """Of the draws of each image's code, how many steps fold space."""
    seen = lambda inputs: guide.share_folded(
        inputs[0], params, inputs[1][None], num_samples=num_draws
    )
    keys = jr.split(key, len(images))
    return eqx.filter_jit(map_batched)(seen, (keys, jnp.asarray(images)), batch_size)


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
    r"""What the paper's released code prints for a test log-likelihood; it is no bound.

    $$\log \frac{1}{10} \sum_s \frac{p(x, z_T^s)}{N(z_T^s; z_T^s, \sigma)}$$

    The draws are refined by gradient ascent without noise, and the density that they are
    divided by is taken at its own centre: as if the draws were spread as the encoder says,
    however close together the steps have taken them.

    Args:
        key: a random key.
        vae: the model.
        params: as learned.
        images: `[n, pixels]`.
        step_size: of the ascent.
        num_steps: of the ascent, T at test time.
        batch_size: images at once.
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
        climb = lambda _, z: z + step_size * jax.grad(model)(z, image)
        refined = jax.lax.fori_loop(0, num_steps, climb, start)
        at_its_centre = -jnp.sum(jnp.log(scale) + 0.5 * LOG_2PI)
        return model(refined, image) - at_its_centre

    def of_one(inputs: tuple[PRNGKeyArray, Array]) -> Scalar:
        key, image = inputs
        keys = jr.split(key, NUM_PAPER_DRAWS)
        return log_mean(jax.vmap(lambda k: log_ratio(k, image))(keys)).value

    return map_batched(of_one, (jr.split(key, len(images)), images), batch_size)
