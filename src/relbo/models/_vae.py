"""Variational autoencoders, plain and conditional, as a NumPyro model and its guide."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from relbo.models._networks import Activation, DenseDecoder, NormalEncoder

Likelihood = Callable[[Array], dist.Distribution]
"""From what the decoder gives for a batch to a distribution over its images."""

_DECODER, _ENCODER = "decoder", "encoder"


class BernoulliPixels(dist.BernoulliLogits):
    """`BernoulliLogits` with a log density that is cheap to differentiate twice.

    A sampler's steps need the gradient alone, which is one logistic function; NumPyro's
    density has its logarithm computed as well, and takes gradients through an absolute value.
    """

    def log_prob(self, value: Any) -> Any:
        return value * self.logits - _log_one_plus_exp(self.logits)


def bernoulli_pixels(logits: Float[Array, "... pixels"]) -> dist.Distribution:
    """Independent pixels that are zero or one."""
    return BernoulliPixels(logits).to_event(1)


class PixelLogLikelihood(eqx.Module):
    """log p(x | z) of one image, or of an image and its label; for `LatentVariableModel`.

    Args:
        decoder: with its learned weights.
        likelihood: what the decoder's output means.
        num_classes: of the labels, `None` where there are none.
    """

    decoder: Callable[..., Array]
    likelihood: Likelihood = eqx.field(static=True)
    num_classes: int | None = eqx.field(static=True)

    def __call__(self, position: Float[Array, " d"], data: PyTree) -> Scalar:
        image, labels = (data, ()) if self.num_classes is None else (data[0], (data[1],))
        decoded = self.decoder(position, *_conditions(labels, self.num_classes))
        return jnp.asarray(self.likelihood(decoded).log_prob(_as_numbers(image)))


class Autoencoder(NamedTuple):
    """A model of images, the encoder that guesses their latent codes, and their networks.

    Both programs take `(images, num_images=None)`, or `(images, labels, num_images=None)` for a
    conditional one. `images` is a batch `[n, pixels]`, and `num_images` how many there are of
    which these are a minibatch. The latent site is `z`, `[n, num_latents]`.
    """

    model: Callable[..., None]
    guide: Callable[..., None]
    decoder: Any
    """As it is before training; `decoder_from` has the learned weights."""
    encoder: Any
    likelihood: Likelihood
    num_latents: int
    num_classes: int | None

    def decoder_from(self, params: dict[str, PyTree]) -> Any:
        """The decoder with the weights of a fit."""
        return _with_weights(self.decoder, params[f"{_DECODER}$params"])

    def encoder_from(self, params: dict[str, PyTree]) -> Any:
        """The encoder with the weights of a fit."""
        return _with_weights(self.encoder, params[f"{_ENCODER}$params"])

    def loglikelihood_from(self, params: dict[str, PyTree]) -> PixelLogLikelihood:
        """log p(x | z) with the weights of a fit, as a function of z and one data point."""
        return PixelLogLikelihood(self.decoder_from(params), self.likelihood, self.num_classes)


def autoencoder(
    *,
    num_pixels: int = 784,
    num_latents: int = 10,
    hidden_sizes: Sequence[int] = (200, 200),
    num_classes: int | None = None,
    activation: Activation = jax.nn.relu,
    encoder: Callable[..., Any] | None = None,
    decoder: Callable[..., Any] | None = None,
    likelihood: Likelihood = bernoulli_pixels,
) -> Autoencoder:
    r"""A variational autoencoder (paper, section 5.3), or a conditional one.

    $$z \sim N(0, I), \qquad x \mid z \sim \text{likelihood}(\text{decoder}(z)), \qquad
      q(z \mid x) = N(\mu(x), \sigma(x))$$

    With labels y in one of `num_classes` classes, the decoder and the encoder see y as well:
    $p(x \mid z, y)$ and $q(z \mid x, y)$.

    Refine it with `relbo.refine(vae.guide, vae.model, ...)` and train it with `relbo.fit`.

    Args:
        num_pixels: of an image.
        num_latents: the length of z.
        hidden_sizes: of the dense networks that are the default.
        num_classes: for a conditional one, how many labels there are; `None` for a plain one.
        activation: of their hidden layers. A sampler's step follows the gradient of the
            decoder, which jumps with relus; `ChangeOfVariables` can be a bound with
            smooth ones only, such as `jax.nn.silu`, and while its steps do not fold.
        encoder: makes another encoder: called with `key=`, gives a function (an
            `equinox.Module`) from one image, and its label as zeros and a one where there are
            labels, to the mean and the standard deviation of z.
        decoder: makes another decoder: called with `key=`, gives a function from one z, and its
            label, to what `likelihood` takes for one image.
        likelihood: the distribution of a batch of images, given what the decoder gave for them;
            one event an image. `lambda mean: dist.Normal(mean, 0.1).to_event(1)` for one that
            is not binary.

    Returns:
        An `Autoencoder`. Each seed of a fit draws its own initial weights.

    Example:
        >>> vae = autoencoder()
        >>> guide = relbo.refine(vae.guide, vae.model, num_steps=5)
        >>> images = relbo.data.binarized_mnist().train.images
        >>> trained = relbo.fit(
        ...     jax.random.key(0), vae.model, (images,), {"num_images": len(images)},
        ...     guide=guide, batch_size=128, num_particles=5, optimiser=optax.adam(1e-3),
        ... )
    """
    num_labels = num_classes or 0
    if encoder is None:
        sizes = (num_pixels + num_labels, *hidden_sizes, num_latents)
        encoder = partial(NormalEncoder, sizes, activation=activation)
    if decoder is None:
        sizes = (num_latents + num_labels, *hidden_sizes, num_pixels)
        decoder = partial(DenseDecoder, sizes, activation=activation)
    prior = dist.Normal(0.0, 1.0).expand([num_latents]).to_event(1)
    decoder_network = _Network(_DECODER, decoder)
    encoder_network = _Network(_ENCODER, encoder)

    def model(images: Array, *labels: Array, num_images: int | None = None) -> None:
        decode = decoder_network()
        with _plate(images, num_images):
            z = numpyro.sample("z", prior)
            decoded = jax.vmap(decode)(z, *_conditions(labels, num_classes))
            numpyro.sample("image", likelihood(decoded), obs=_as_numbers(images))

    def guide(images: Array, *labels: Array, num_images: int | None = None) -> None:
        encode = encoder_network()
        with _plate(images, num_images):
            numbers = _as_numbers(images)
            loc, scale = jax.vmap(encode)(numbers, *_conditions(labels, num_classes))
            numpyro.sample("z", dist.Normal(loc, scale).to_event(1))

    return Autoencoder(
        model,
        guide,
        decoder_network.example,
        encoder_network.example,
        likelihood,
        num_latents,
        num_classes,
    )


class _Network:
    """A network whose weights are a parameter of a NumPyro program."""

    def __init__(self, name: str, make: Callable[..., Any]):
        self.name, self.make = name, make
        # For all that is not a weight: the structure, and constants.
        self.example = make(key=jr.key(0))

    def __call__(self) -> Any:
        # From the program's key, so that each seed of a fit draws its own.
        weights = numpyro.param(f"{self.name}$params", self._draw)
        return _with_weights(self.example, weights)

    def _draw(self, key: PRNGKeyArray) -> PyTree:
        return eqx.filter(self.make(key=key), eqx.is_inexact_array)


def _with_weights(network: Any, weights: PyTree) -> Any:
    _, rest = eqx.partition(network, eqx.is_inexact_array)
    return eqx.combine(weights, rest)


def _plate(images: Array, num_images: int | None) -> Any:
    size = len(images) if num_images is None else num_images
    return numpyro.plate("images", size, subsample_size=len(images))


def _as_numbers(images: Array) -> Array:
    """Images may be kept as bytes, which take a quarter of the memory."""
    return jnp.asarray(images, jnp.result_type(float))


def _conditions(labels: tuple[Array, ...], num_classes: int | None) -> tuple[Array, ...]:
    """What the networks are given besides: nothing, or the labels as zeros and a one."""
    wanted = "images alone" if num_classes is None else "labels after the images"
    if len(labels) != (num_classes is not None):
        raise ValueError(
            f"labels: expected {wanted}, got {len(labels)} arguments after the images"
        )
    return tuple(jax.nn.one_hot(label, num_classes or 0) for label in labels)


@jax.custom_jvp
def _log_one_plus_exp(logits: Array) -> Array:
    return jnp.maximum(logits, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(logits)))


_log_one_plus_exp.defjvps(lambda tangent, _, logits: tangent * jax.nn.sigmoid(logits))
