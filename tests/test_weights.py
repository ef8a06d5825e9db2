"""The mean of weights that are known by their logarithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo._weights import log_mean_exp

INFINITY = jnp.inf


@pytest.mark.parametrize(
    "weights",
    [[0.0, -1.0, 2.0], [3.0, 3.0, 3.0], [-INFINITY, 1.0, 2.0], [-5e4, -4e4, -3e4], [7.0]],
)
def test_it_and_its_gradient_are_those_of_logsumexp(weights):
    weights = jnp.array([weights, weights[::-1]])
    theirs = lambda w: jax.nn.logsumexp(w, axis=-1) - jnp.log(w.shape[-1])
    np.testing.assert_allclose(log_mean_exp(weights), theirs(weights), rtol=1e-6)
    slopes = [jax.grad(lambda w, f=f: jnp.sum(f(w)))(weights) for f in (log_mean_exp, theirs)]
    np.testing.assert_allclose(*slopes, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([-INFINITY, -INFINITY], -INFINITY),
        ([0.0, INFINITY], INFINITY),
        ([0.0, jnp.nan], jnp.nan),
    ],
)
def test_what_is_not_finite_stays_so(weights, expected):
    np.testing.assert_equal(np.asarray(log_mean_exp(jnp.array(weights))), np.float32(expected))


def test_a_product_before_it_does_no_harm():
    """Compiled together, product and subtraction are rounded once, as nothing else is."""

    @jax.jit
    def found(numbers):
        return jax.vmap(lambda row: log_mean_exp(row * jnp.float32(1e10 / 3.0)))(numbers)

    numbers = -jnp.linspace(1.0, 2.0, 400).reshape(80, 5)
    np.testing.assert_allclose(found(numbers), numbers[:, 0] * 1e10 / 3.0, rtol=1e-6)
