"""Small neural networks, each written for one data point."""

from collections.abc import Callable, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

Activation = Callable[[Array], Array]


class DenseLayers(eqx.Module):
    """Dense layers with an activation between them.

    The weights have the shape `[in, out]`, so that a layer of many points is one matrix product
    without a transpose (`equinox.nn.MLP` has `[out, in]`).

    Args:
        sizes: the sizes of the input, of each hidden layer and of the output.
        key: a random key; entries are uniform between plus and minus one over the square root
            of the number of inputs of the layer.
        activation: the activation of every hidden layer.
    """

    weights: tuple[Float[Array, "in out"], ...]
    biases: tuple[Float[Array, " out"], ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[int], *, key: PRNGKeyArray, activation: Activation = jax.nn.relu
    ):
        weights, biases = [], []
        layers = zip(sizes[:-1], sizes[1:], jr.split(key, len(sizes) - 1), strict=True)
        for num_inputs, num_outputs, layer_key in layers:
            drawn = jr.uniform(layer_key, (num_inputs + 1, num_outputs), minval=-1.0)
            drawn = drawn / num_inputs**0.5
            weights.append(drawn[1:])
            biases.append(drawn[0])
        self.weights, self.biases = tuple(weights), tuple(biases)
        self.activation = activation

    def __call__(self, inputs: Float[Array, " in"]) -> Float[Array, " out"]:
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            inputs = self.activation(inputs @ weight + bias)
        weight, bias = last
        return inputs @ weight + bias


class NormalEncoder(eqx.Module):
    """A normal over the latent code, whose mean and scale are two networks of the same shape.

    Both have the same input, so their first layers are stored together and computed as one
    matrix product.

    Args:
        sizes: the sizes of the input, of each hidden layer and of the code.
        key: a random key.
        activation: the activation of every hidden layer.
    """

    first: DenseLayers
    loc: DenseLayers
    scale: DenseLayers

    def __init__(
        self, sizes: Sequence[int], *, key: PRNGKeyArray, activation: Activation = jax.nn.relu
    ):
        layers = partial(DenseLayers, activation=activation)
        first_key, loc_key, scale_key = jr.split(key, 3)
        self.first = layers((sizes[0], 2 * sizes[1]), key=first_key)
        self.loc = layers(sizes[1:], key=loc_key)
        self.scale = layers(sizes[1:], key=scale_key)

    def __call__(
        self, *inputs: Float[Array, " _"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        # Each input separately: an image that is paired with every label is multiplied once.
        (weight,), (seen,) = self.first.weights, self.first.biases
        for part in inputs:
            seen = seen + part @ weight[: len(part)]
            weight = weight[len(part) :]
        of_loc, of_scale = jnp.split(seen, 2)
        if self.loc.weights:
            of_loc = self.loc(self.loc.activation(of_loc))
            of_scale = self.scale(self.scale.activation(of_scale))
        # Softplus underflows to zero, and a scale of zero would have no density.
        smallest = jnp.finfo(seen.dtype).eps
        return of_loc, jax.nn.softplus(of_scale) + smallest


class DenseDecoder(eqx.Module):
    """One number for each pixel, from the latent code and the label, if there is one.

    Args:
        sizes: the sizes of the input, of each hidden layer and of the output.
        key: a random key.
        activation: the activation of every hidden layer.
    """

    layers: DenseLayers

    def __init__(
        self, sizes: Sequence[int], *, key: PRNGKeyArray, activation: Activation = jax.nn.relu
    ):
        self.layers = DenseLayers(sizes, key=key, activation=activation)

    def __call__(self, *inputs: Float[Array, " _"]) -> Float[Array, " pixels"]:
        return self.layers(jnp.concatenate(inputs))
