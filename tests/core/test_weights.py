"""The log-mean-exp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo import log_mean_exp

INFINITY = jnp.inf


def test_values_and_gradients_match_logsumexp():
    weights = jnp.array(
        [[0.0, -1.0, 2.0], [3.0, 3.0, 3.0], [-INFINITY, 1.0, 2.0], [-5e4, -4e4, -3e4]]
    )
    weights = jnp.concatenate([weights, weights[:, ::-1]])
    theirs = lambda w: jax.nn.logsumexp(w, axis=-1) - jnp.log(w.shape[-1])
    found = [
        jax.jit(
            jax.value_and_grad(lambda w, f=f: (lambda v: (jnp.sum(v), v))(f(w)), has_aux=True)
        )(weights)
        for f in (log_mean_exp, theirs)
    ]
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    assert log_mean_exp(jnp.array([7.0])) == 7.0


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([-INFINITY, -INFINITY], -INFINITY),
        ([0.0, INFINITY], INFINITY),
        ([0.0, jnp.nan], jnp.nan),
    ],
)
def test_non_finite_weights(weights, expected):
    np.testing.assert_equal(np.asarray(log_mean_exp(jnp.array(weights))), np.float32(expected))


def test_a_fused_product_does_not_change_the_result():
    """The compiler rounds a fused product and subtraction only once."""

    @jax.jit
    def found(numbers):
        return jax.vmap(lambda row: log_mean_exp(row * jnp.float32(1e10 / 3.0)))(numbers)

    numbers = -jnp.linspace(1.0, 2.0, 400).reshape(80, 5)
    np.testing.assert_allclose(found(numbers), numbers[:, 0] * 1e10 / 3.0, rtol=1e-6)
