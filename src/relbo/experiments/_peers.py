"""The methods that the paper's table stands beside, written anew from their papers."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar
from numpyro.infer.elbo import ELBO

from relbo._weights import log_mean_exp
from relbo.bases import LOG_2PI
from relbo.evaluate import LatentVariableModel
from relbo.models import Autoencoder
from relbo.models._networks import DenseLayers

NUM_NOISE = 10
"""The length of the noise that a semi-implicit encoder takes."""
NUM_MIXED = 50
"""Further noises in the density of SIVI."""


class Hamiltonian(NamedTuple):
    """How the chains of the peers move; the published ones take a few short trajectories."""

    num_trajectories: int = 3
    num_leapfrogs: int = 5
    step_size: float = 0.3
    """In units of a given scale, such as the encoder's own."""

    def run(
        self, key: PRNGKeyArray, logdensity_fn: Any, start: Float[Array, "n d"], scale: Any
    ) -> Float[Array, "n d"]:
        """Moves n chains, each accepted or rejected by itself.

        Args:
            key: a random key.
            logdensity_fn: from `[n, d]` to `[n]`.
            start: where they begin.
            scale: the size of each coordinate.
        """
        value_and_grad = _row_value_and_grad(logdensity_fn)
        scale = self.step_size * jnp.broadcast_to(scale, start.shape)

        def trajectory(state: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
            position, value, grad = state
            momentum_key, accept_key = jr.split(key)
            momentum = jr.normal(momentum_key, start.shape)
            moved = (position, momentum, value, grad)
            moved, _ = jax.lax.scan(leap, moved, length=self.num_leapfrogs)
            gain = moved[2] - value - _kinetic(moved[1]) + _kinetic(momentum)
            is_taken = jnp.log(jr.uniform(accept_key, gain.shape)) < gain
            keep = lambda new, old: jnp.where(_aligned(is_taken, new), new, old)
            new_state = (moved[0], moved[2], moved[3])
            return jax.tree.map(keep, new_state, state), None

        def leap(state: tuple, _: None) -> tuple[tuple, None]:
            position, momentum, _, grad = state
            momentum = momentum + 0.5 * scale * grad
            position = position + scale * momentum
            value, grad = value_and_grad(position)
            momentum = momentum + 0.5 * scale * grad
            return (position, momentum, value, grad), None

        state = (start, *value_and_grad(start))
        (position, *_), _ = jax.lax.scan(
            trajectory, state, jr.split(key, self.num_trajectories)
        )
        return jax.lax.stop_gradient(position)


def _row_value_and_grad(logdensity_fn: Any) -> Any:
    def of(position: Array) -> tuple[Array, Array]:
        value, pull = jax.vjp(logdensity_fn, position)
        return value, pull(jnp.ones_like(value))[0]

    return of


def _kinetic(momentum: Array) -> Array:
    return 0.5 * jnp.sum(jnp.square(momentum), axis=-1)


def _aligned(rows: Array, like: Array) -> Array:
    return rows.reshape(rows.shape + (1,) * (like.ndim - rows.ndim))


class _Encoded(NamedTuple):
    """A minibatch, its normal encoder and its joint density."""

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


def _encoded(vae: Autoencoder, params: dict[str, PyTree], images: Array) -> _Encoded:
    loc, scale = jax.vmap(vae.encoder_from(params))(images.astype(jnp.result_type(float)))
    return _Encoded(loc, scale, LatentVariableModel(vae.loglikelihood_from(params)), images)


def _normal_log_prob(value: Array, loc: Array, scale: Array) -> Array:
    density = -0.5 * jnp.square((value - loc) / scale) - jnp.log(scale) - 0.5 * LOG_2PI
    return jnp.sum(density, axis=-1)


class _AbstractAutoencoderLoss(ELBO, ABC):
    """A loss that needs the networks themselves; its value is minus the plain ELBO."""

    def __init__(self, vae: Autoencoder, hamiltonian: Hamiltonian | None = None):
        super().__init__(num_particles=1)
        self.vae = vae
        self.hamiltonian = hamiltonian or Hamiltonian()

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
        self, key: PRNGKeyArray, encoded: _Encoded, frozen: _Encoded
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The ELBO, through which the encoder learns, and all else that is to be climbed."""


class HamiltonianDLGM(_AbstractAutoencoderLoss):
    """The encoder learns by the ELBO, the decoder from Hamiltonian chains begun there.

    References:
        Hoffman, Learning deep latent Gaussian models with Markov chain Monte Carlo, 2017.
    """

    def _objective(
        self, key: PRNGKeyArray, encoded: _Encoded, frozen: _Encoded
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        draw_key, chain_key = jr.split(key)
        start = encoded.draw(draw_key)
        elbo = frozen.log_joint(start) - encoded.log_q(start)
        moved = self.hamiltonian.run(
            chain_key, frozen.log_joint, jax.lax.stop_gradient(start), frozen.scale
        )
        return elbo, encoded.log_joint(moved)


class ContrastiveDivergence(_AbstractAutoencoderLoss):
    r"""Variational contrastive divergence: how far a few Hamiltonian steps still move q.

    $$KL(q_0 \,\|\, p) - KL(q_t \,\|\, p) + KL(q_t \,\|\, q_0)
      = -E_{q_0} f + E_{q_t} f, \qquad f = \log p(x, z) - \log q_0(z),$$

    and the decoder learns from $q_t$. The part of the gradient that goes through where the
    chain began is a score-function estimate; the mean of f over other draws of $q_0$ is its
    baseline.

    References:
        Ruiz and Titsias, A contrastive divergence for combining variational inference and
        MCMC, 2019.
    """

    num_baseline_draws = 5

    def _objective(
        self, key: PRNGKeyArray, encoded: _Encoded, frozen: _Encoded
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        draw_key, chain_key, baseline_key = jr.split(key, 3)
        start = encoded.draw(draw_key)
        elbo = frozen.log_joint(start) - encoded.log_q(start)
        fixed = jax.lax.stop_gradient(start)
        moved = self.hamiltonian.run(chain_key, frozen.log_joint, fixed, frozen.scale)
        gap = lambda z: frozen.log_joint(z) - frozen.log_q(z)
        others = jax.vmap(lambda k: gap(frozen.draw(k)))(
            jr.split(baseline_key, self.num_baseline_draws)
        )
        weight = gap(moved) - jnp.mean(others, axis=0)
        follow = encoded.log_q(moved) - weight * encoded.log_q(fixed)
        return elbo, follow + encoded.log_joint(moved)


class NoisyEncoder(eqx.Module):
    """A normal whose mean depends on a noise, so that the encoder's law is a mixture.

    The image and the noise enter the first layer as one long input would, written as a sum:
    the image's part is the same for all noises.

    Args:
        sizes: of the image, of each hidden layer and of the code.
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

    def see(self, image: Float[Array, " pixels"]) -> tuple[Array, Array]:
        """The image's part of the first layer, and the scale."""
        smallest = jnp.finfo(image.dtype).eps
        return self.image(image), jax.nn.softplus(self.scale(image)) + smallest

    def locate(self, seen: Array, noise: Float[Array, " noise"]) -> Float[Array, " d"]:
        """The mean under a noise."""
        return self.rest(jax.nn.relu(seen + self.noise(noise)))


class AbstractSemiImplicitGuide(ABC):
    """A guide that draws a noise, then the code; a subclass says what stands for log q."""

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
            raise ValueError("a guide draws: run it inside numpyro.handlers.seed")
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
        seen, scale = encoder.see(image)
        noise = jr.normal(noise_key, (NUM_NOISE,))
        loc = encoder.locate(seen, noise)
        value = loc + scale * jr.normal(draw_key, loc.shape)
        drawn = _Drawn(encoder, seen, scale, value)
        return value, self._log_q(density_key, drawn, noise)

    @abstractmethod
    def _log_q(self, key: PRNGKeyArray, drawn: "_Drawn", noise: Array) -> Scalar:
        """What stands for log q of a code."""


class _Drawn(NamedTuple):
    """A code, and what it was drawn with but for the noise."""

    encoder: NoisyEncoder
    seen: Array
    scale: Array
    value: Array

    def log_given(self, noise: Array) -> Scalar:
        """log q of the code given a noise."""
        return _normal_log_prob(self.value, self.encoder.locate(self.seen, noise), self.scale)


class SIVI(AbstractSemiImplicitGuide):
    """log q by a mixture over the noise that was drawn and some more: the ELBO stays a bound.

    References:
        Yin and Zhou, Semi-implicit variational inference, 2018.
    """

    def _log_q(self, key: PRNGKeyArray, drawn: _Drawn, noise: Array) -> Scalar:
        others = jr.normal(key, (NUM_MIXED, NUM_NOISE))
        components = jax.vmap(drawn.log_given)(jnp.concatenate([noise[None], others]))
        return log_mean_exp(components)


class UIVI(AbstractSemiImplicitGuide):
    r"""The gradient of log q without bias, from noises that may have led to the same code.

    $$\nabla_z \log q(z) = E_{q(\epsilon' \mid z)} \nabla_z \log q(z \mid \epsilon'),$$

    with $\epsilon'$ from a short Hamiltonian chain that begins at the noise that was drawn. The
    value is the conditional density's, whose ELBO is a bound.

    References:
        Titsias and Ruiz, Unbiased implicit variational inference, 2019.
    """

    chain = Hamiltonian(num_trajectories=5, num_leapfrogs=5, step_size=0.2)

    def _log_q(self, key: PRNGKeyArray, drawn: _Drawn, noise: Array) -> Scalar:
        frozen = jax.lax.stop_gradient(drawn)
        log_reverse = lambda e: frozen.log_given(e) - _kinetic(e)
        other = self.chain.run(key, jax.vmap(log_reverse), noise[None], 1.0)[0]
        slope = jax.grad(lambda z: frozen._replace(value=z).log_given(other))(frozen.value)
        # Only through the code: the density's own parameters have no gradient on average.
        return frozen.log_given(noise) + jnp.dot(slope, drawn.value - frozen.value)
