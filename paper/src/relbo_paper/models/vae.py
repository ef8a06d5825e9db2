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

from relbo_paper.models.networks import Activation, DenseDecoder, NormalEncoder

Likelihood = Callable[[Array], dist.Distribution]
"""From the decoder's outputs for a batch to a distribution over its images."""

_DECODER, _ENCODER = "decoder", "encoder"


class BernoulliPixels(dist.BernoulliLogits):
    """`BernoulliLogits` with a log density that is cheap to differentiate twice.

    The steps of a sampler need only its gradient, which is one logistic function. With the
    density of NumPyro the logarithm is computed as well, and gradients pass through an
    absolute value.
    """

    def log_prob(self, value: Any) -> Any:
        return value * self.logits - _log_one_plus_exp(self.logits)


def bernoulli_pixels(logits: Float[Array, "... pixels"]) -> dist.Distribution:
    """Returns a distribution of independent pixels that are zero or one."""
    return BernoulliPixels(logits).to_event(1)


class PixelLogLikelihood(eqx.Module):
    """log p(x | z) of one image, or of an image with a label; for `LatentVariableModel`.

    Args:
        decoder: the decoder with its learned weights.
        likelihood: from the decoder's output to a distribution over images.
        num_classes: number of classes; `None` without labels.
    """

    decoder: Callable[..., Array]
    likelihood: Likelihood = eqx.field(static=True)
    num_classes: int | None = eqx.field(static=True)

    def __call__(self, position: Float[Array, " d"], data: PyTree) -> Scalar:
        image, labels = (data, ()) if self.num_classes is None else (data[0], (data[1],))
        decoded = self.decoder(position, *_conditions(labels, self.num_classes))
        return jnp.asarray(self.likelihood(decoded).log_prob(_as_numbers(image)))


class Autoencoder(NamedTuple):
    """A model of images, its guide (the encoder), and the networks of both.

    Both programs take `(images, num_images=None)`, or `(images, labels, num_images=None)` if
    conditional. `images` is a batch `[n, pixels]`, and `num_images` the size of the data set of
    which it is a minibatch. The latent site is `z`, `[n, num_latents]`.
    """

    model: Callable[..., None]
    guide: Callable[..., None]
    decoder: Any
    """Before training; `decoder_from` returns it with learned weights."""
    encoder: Any
    likelihood: Likelihood
    num_latents: int
    num_classes: int | None

    def decoder_from(self, params: dict[str, PyTree]) -> Any:
        """Returns the decoder with the weights of a fit."""
        return _with_weights(self.decoder, params[f"{_DECODER}$params"])

    def encoder_from(self, params: dict[str, PyTree]) -> Any:
        """Returns the encoder with the weights of a fit."""
        return _with_weights(self.encoder, params[f"{_ENCODER}$params"])

    def loglikelihood_from(self, params: dict[str, PyTree]) -> PixelLogLikelihood:
        """Returns log p(x | z) with the weights of a fit, for one z and one data point."""
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
    r"""Builds a variational autoencoder (paper, section 5.3), plain or conditional.

    $$z \sim N(0, I), \qquad x \mid z \sim \text{likelihood}(\text{decoder}(z)), \qquad
      q(z \mid x) = N(\mu(x), \sigma(x))$$

    With labels y in one of `num_classes` classes, both networks take y as well:
    $p(x \mid z, y)$ and $q(z \mid x, y)$.

    Refine it with `relbo.refine(vae.guide, vae.model, ...)` and train it with `relbo.fit`.

    Args:
        num_pixels: number of pixels of an image.
        num_latents: the length of z.
        hidden_sizes: the sizes of the hidden layers of the default networks.
        num_classes: number of classes of a conditional model; `None` for a plain one.
        activation: the activation of the hidden layers. The steps of a sampler follow the
            gradient of the decoder, which is discontinuous with relus. With
            `ChangeOfVariablesAccount` the objective can be a bound only with a smooth
            activation, such as `jax.nn.silu`, and only if the steps do not fold space.
        encoder: makes another encoder: called with `key=`, it returns a function (an
            `equinox.Module`) from one image, and its one-hot label if there are labels, to the
            mean and the standard deviation of z.
        decoder: makes another decoder: called with `key=`, it returns a function from one z,
            and its one-hot label, to the argument of `likelihood` for one image.
        likelihood: the distribution of a batch of images given the outputs of the decoder, with
            one event per image. For images that are not binary, for example
            `lambda mean: dist.Normal(mean, 0.1).to_event(1)`.

    Returns:
        An `Autoencoder`. Each seed of a fit draws its own initial weights.

    Example:
        >>> vae = autoencoder()
        >>> guide = relbo.refine(vae.guide, vae.model, num_steps=5)
        >>> images = relbo_paper.data.binarized_mnist().train.images
        >>> trained = relbo.fit(
        ...     0, vae.model, (images,), {"num_images": len(images)},
        ...     guide=guide, loss=Trace_ELBO(num_particles=5), batch_size=128,
        ...     optimiser=optax.adam(1e-3),
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
        # Provides everything that is not a weight: the structure and the constants.
        self.example = make(key=jr.key(0))

    def __call__(self) -> Any:
        # Drawn with the key of the program, so that each seed of a fit has its own weights.
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
    """Converts images from bytes, which take a quarter of the memory, to floats."""
    return jnp.asarray(images, jnp.result_type(float))


def _conditions(labels: tuple[Array, ...], num_classes: int | None) -> tuple[Array, ...]:
    """Returns the further inputs of the networks: nothing, or the one-hot labels."""
    if len(labels) != (num_classes is not None):
        expected = "images alone" if num_classes is None else "labels after the images"
        raise ValueError(
            f"labels: expected {expected}, got {len(labels)} arguments after the images"
        )
    return tuple(jax.nn.one_hot(label, num_classes or 0) for label in labels)


@jax.custom_jvp
def _log_one_plus_exp(logits: Array) -> Array:
    return jnp.maximum(logits, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(logits)))


_log_one_plus_exp.defjvps(lambda tangent, _, logits: tangent * jax.nn.sigmoid(logits))
