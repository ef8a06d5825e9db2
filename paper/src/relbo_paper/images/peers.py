"""The other methods of the paper's table, implemented from their publications."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro.infer.elbo import ELBO

from relbo import leapfrog, log_mean_exp
from relbo.evaluate import LatentVariableModel
from relbo_paper.models import Autoencoder
from relbo_paper.models.networks import DenseLayers

NUM_NOISE = 10
"""Length of the noise vector of a semi-implicit encoder."""
NUM_MIXED = 50
"""Number of further noise vectors in the density of SIVI."""


class HamiltonianChains(NamedTuple):
    """Short HamiltonianChains chains; the published methods use a few short trajectories."""

    num_trajectories: int = 3
    num_leapfrogs: int = 5
    step_size: float = 0.3
    """In units of a given scale, such as that of the encoder."""

    def run(
        self,
        key: PRNGKeyArray,
        logdensity_fn: Callable[[Array], Array],
        start: Float[Array, "n d"],
        scale: Float[Array, "..."] | float,
    ) -> Float[Array, "n d"]:
        """Moves n chains, each with its own acceptance step.

        Args:
            key: a random key.
            logdensity_fn: from `[n, d]` to `[n]`.
            start: the initial positions.
            scale: the scale of each coordinate.
        """
        score_fn = jax.grad(lambda position: jnp.sum(logdensity_fn(position)))
        step_size = self.step_size * jnp.broadcast_to(scale, start.shape)

        def leap(state: tuple, _: None) -> tuple[tuple, None]:
            position, momentum, score = state
            return leapfrog(position, momentum, score, step_size, score_fn), None

        def trajectory(state: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
            position, value, score = state
            momentum_key, accept_key = jr.split(key)
            momentum = jr.normal(momentum_key, start.shape)
            moved, new_momentum, new_score = jax.lax.scan(
                leap, (position, momentum, score), length=self.num_leapfrogs
            )[0]
            new_value = logdensity_fn(moved)
            gain = new_value - value - _kinetic(new_momentum) + _kinetic(momentum)
            accepted = jnp.log(jr.uniform(accept_key, gain.shape)) < gain
            keep = lambda new, old: jnp.where(_aligned(accepted, new), new, old)
            return jax.tree.map(keep, (moved, new_value, new_score), state), None

        state = (start, logdensity_fn(start), score_fn(start))
        (position, *_), _ = jax.lax.scan(
            trajectory, state, jr.split(key, self.num_trajectories)
        )
        return jax.lax.stop_gradient(position)


def _kinetic(momentum: Array) -> Array:
    return 0.5 * jnp.sum(jnp.square(momentum), axis=-1)


def _aligned(rows: Array, like: Array) -> Array:
    """Adds trailing axes to `rows` until it has as many as `like`."""
    return rows.reshape(rows.shape + (1,) * (like.ndim - rows.ndim))


class _EncodedBatch(NamedTuple):
    """A minibatch with its normal encoder and its joint density."""

    loc: Float[Array, "n d"]
    scale: Float[Array, "n d"]
    model: LatentVariableModel
    images: Array

    def log_joint(self, position: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jax.vmap(self.model)(position, self.images)

    def log_q(self, position: Float[Array, "n d"]) -> Float[Array, " n"]:
        return _normal_log_prob(position, self.loc, self.scale)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n d"]:
        return self.loc + self.scale * jr.normal(key, self.loc.shape)


def _encoded(vae: Autoencoder, params: dict[str, PyTree], images: Array) -> _EncodedBatch:
    loc, scale = jax.vmap(vae.encoder_from(params))(images.astype(jnp.result_type(float)))
    return _EncodedBatch(
        loc, scale, LatentVariableModel(vae.loglikelihood_from(params)), images
    )


def _normal_log_prob(value: Array, loc: Array, scale: Array) -> Array:
    density = (
        -0.5 * jnp.square((value - loc) / scale)
        - jnp.log(scale)
        - 0.5 * math.log(2.0 * math.pi)
    )
    return jnp.sum(density, axis=-1)


class _AbstractAutoencoderLoss(ELBO, ABC):
    """A loss that uses the networks directly; its value is minus the plain ELBO."""

    def __init__(self, vae: Autoencoder, chains: HamiltonianChains | None = None):
        super().__init__(num_particles=1)
        self.vae = vae
        self.chains = chains or HamiltonianChains()

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        (images,), num_images = args, kwargs.get("num_images")
        encoded = _encoded(self.vae, param_map, images)
        elbo, objective = self._objective(rng_key, encoded, jax.lax.stop_gradient(encoded))
        scale = (num_images or len(images)) / len(images)
        value = jnp.sum(elbo)
        learned = value + jnp.sum(objective) - jax.lax.stop_gradient(jnp.sum(objective))
        return {"loss": -scale * learned, "mutable_state": None}

    @abstractmethod
    def _objective(
        self, key: PRNGKeyArray, encoded: _EncodedBatch, frozen: _EncodedBatch
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Returns the ELBO, which trains the encoder, and the rest of the objective."""


class HamiltonianDLGM(_AbstractAutoencoderLoss):
    """Trains the encoder by the ELBO, and the decoder on Hamiltonian chains from there.

    References:
        Hoffman, Learning deep latent Gaussian models with Markov chain Monte Carlo, 2017.
    """

    def _objective(
        self, key: PRNGKeyArray, encoded: _EncodedBatch, frozen: _EncodedBatch
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        draw_key, chain_key = jr.split(key)
        start = encoded.draw(draw_key)
        elbo = frozen.log_joint(start) - encoded.log_q(start)
        moved = self.chains.run(
            chain_key, frozen.log_joint, jax.lax.stop_gradient(start), frozen.scale
        )
        return elbo, encoded.log_joint(moved)


class ContrastiveDivergence(_AbstractAutoencoderLoss):
    r"""Variational contrastive divergence: how far a few Hamiltonian steps move q.

    $$KL(q_0 \,\|\, p) - KL(q_t \,\|\, p) + KL(q_t \,\|\, q_0)
      = -E_{q_0} f + E_{q_t} f, \qquad f = \log p(x, z) - \log q_0(z),$$

    and the decoder is trained on $q_t$. The gradient through the start of the chain is a
    score-function estimate, with the mean of f over other draws of $q_0$ as its baseline.

    References:
        Ruiz and Titsias, A contrastive divergence for combining variational inference and
        MCMC, 2019.
    """

    num_baseline_draws = 5

    def _objective(
        self, key: PRNGKeyArray, encoded: _EncodedBatch, frozen: _EncodedBatch
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        draw_key, chain_key, baseline_key = jr.split(key, 3)
        start = encoded.draw(draw_key)
        elbo = frozen.log_joint(start) - encoded.log_q(start)
        fixed = jax.lax.stop_gradient(start)
        moved = self.chains.run(chain_key, frozen.log_joint, fixed, frozen.scale)
        gap = lambda z: frozen.log_joint(z) - frozen.log_q(z)
        others = jax.vmap(lambda k: gap(frozen.draw(k)))(
            jr.split(baseline_key, self.num_baseline_draws)
        )
        weight = gap(moved) - jnp.mean(others, axis=0)
        follow = encoded.log_q(moved) - weight * encoded.log_q(fixed)
        return elbo, follow + encoded.log_joint(moved)


class NoisyEncoder(eqx.Module):
    """A normal whose mean depends on a noise vector, so that the encoder is a mixture.

    The first layer is linear in the image and the noise, and is computed as a sum of two
    products, because the part of the image is the same for all noise vectors.

    Args:
        sizes: the sizes of the image, of each hidden layer and of the code.
        key: a random key.
    """

    image: DenseLayers
    noise: DenseLayers
    rest: DenseLayers
    scale: DenseLayers

    def __init__(self, sizes: tuple[int, ...], *, key: PRNGKeyArray):
        image_key, noise_key, rest_key, scale_key = jr.split(key, 4)
        self.image = DenseLayers(sizes[:2], key=image_key)
        self.noise = DenseLayers((NUM_NOISE, sizes[1]), key=noise_key)
        self.rest = DenseLayers(sizes[1:], key=rest_key)
        self.scale = DenseLayers(sizes, key=scale_key)

    def image_part(self, image: Float[Array, " pixels"]) -> tuple[Array, Array]:
        """Returns the image's part of the first layer, and the scale."""
        smallest = jnp.finfo(image.dtype).eps
        return self.image(image), jax.nn.softplus(self.scale(image)) + smallest

    def mean(self, seen: Array, noise: Float[Array, " noise"]) -> Float[Array, " d"]:
        """Returns the mean given the noise vector."""
        return self.rest(jax.nn.relu(seen + self.noise(noise)))


class AbstractSemiImplicitGuide(ABC):
    """A guide that draws a noise vector, then the code; a subclass defines log q."""

    def __init__(self, num_pixels: int, num_latents: int, hidden_sizes: tuple[int, ...]):
        self.sizes = (num_pixels, *hidden_sizes, num_latents)
        self.example = NoisyEncoder(self.sizes, key=jr.key(0))

    def __call__(self, images: Array, num_images: int | None = None) -> dict[str, Any]:
        weights = numpyro.param("noisy_encoder$params", self._draw_weights)
        encoder: Any = eqx.combine(
            weights, eqx.partition(self.example, eqx.is_inexact_array)[1]
        )
        key = numpyro.prng_key()
        if key is None:
            raise ValueError("the guide needs a random key: run it in numpyro.handlers.seed")
        numbers = images.astype(jnp.result_type(float))
        value, log_q = jax.vmap(lambda k, x: self._draw(k, encoder, x))(
            jr.split(key, len(images)), numbers
        )
        size = num_images or len(images)
        with numpyro.plate("images", size, subsample_size=len(images)):
            drawn = dist.Delta(value, log_density=log_q, event_dim=1)
            return {"z": numpyro.sample("z", drawn)}

    def _draw_weights(self, key: PRNGKeyArray) -> PyTree:
        return eqx.filter(NoisyEncoder(self.sizes, key=key), eqx.is_inexact_array)

    def _draw(
        self, key: PRNGKeyArray, encoder: NoisyEncoder, image: Array
    ) -> tuple[Float[Array, " d"], Scalar]:
        noise_key, draw_key, density_key = jr.split(key, 3)
        seen, scale = encoder.image_part(image)
        noise = jr.normal(noise_key, (NUM_NOISE,))
        loc = encoder.mean(seen, noise)
        value = loc + scale * jr.normal(draw_key, loc.shape)
        drawn = _DrawnCode(encoder, seen, scale, value)
        return value, self._log_q(density_key, drawn, noise)

    @abstractmethod
    def _log_q(self, key: PRNGKeyArray, drawn: "_DrawnCode", noise: Array) -> Scalar:
        """Returns log q of a code, or an estimate of it."""


class _DrawnCode(NamedTuple):
    """A code, and what it was drawn with except the noise vector."""

    encoder: NoisyEncoder
    seen: Array
    scale: Array
    value: Array

    def log_given(self, noise: Array) -> Scalar:
        """Returns log q of the code given a noise vector."""
        return _normal_log_prob(self.value, self.encoder.mean(self.seen, noise), self.scale)


class SIVI(AbstractSemiImplicitGuide):
    """Estimates log q by a mixture over the drawn and further noise vectors: still a bound.

    References:
        Yin and Zhou, Semi-implicit variational inference, 2018.
    """

    def _log_q(self, key: PRNGKeyArray, drawn: _DrawnCode, noise: Array) -> Scalar:
        others = jr.normal(key, (NUM_MIXED, NUM_NOISE))
        components = jax.vmap(drawn.log_given)(jnp.concatenate([noise[None], others]))
        return log_mean_exp(components)


class UIVI(AbstractSemiImplicitGuide):
    r"""Estimates the gradient of log q without bias, from other noise vectors of the code.

    $$\nabla_z \log q(z) = E_{q(\epsilon' \mid z)} \nabla_z \log q(z \mid \epsilon'),$$

    with $\epsilon'$ from a short Hamiltonian chain that starts at the drawn noise vector. The
    value is that of the conditional density, whose ELBO is a bound.

    References:
        Titsias and Ruiz, Unbiased implicit variational inference, 2019.
    """

    chain = HamiltonianChains(num_trajectories=5, num_leapfrogs=5, step_size=0.2)

    def _log_q(self, key: PRNGKeyArray, drawn: _DrawnCode, noise: Array) -> Scalar:
        frozen = jax.lax.stop_gradient(drawn)
        log_reverse = lambda e: frozen.log_given(e) - _kinetic(e)
        other = self.chain.run(key, jax.vmap(log_reverse), noise[None], 1.0)[0]
        slope = jax.grad(lambda z: frozen._replace(value=z).log_given(other))(frozen.value)
        # Only through the code: the expected gradient of the density's parameters is zero.
        return frozen.log_given(noise) + jnp.dot(slope, drawn.value - frozen.value)
