"""Random keys: what is accepted and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from relbo.core.random import as_key

BASE = relbo.DiagonalNormal(jnp.zeros(2))


@pytest.mark.parametrize(
    "key", [3, np.int64(3), jr.key(3), jr.PRNGKey(3), np.array([0, 3], np.uint32)]
)
def test_seeds_and_keys_give_the_same_typed_key(key):
    assert as_key(key) == jr.key(3)


def test_traced_keys_are_accepted():
    draw = jax.jit(lambda key: jr.normal(as_key(key)))
    assert draw(jr.key(3)) == draw(jr.PRNGKey(3)) == jr.normal(jr.key(3))


@pytest.mark.parametrize(
    "key",
    [
        True,
        -1,
        0.5,
        "0",
        None,
        2**70,
        jr.split(jr.key(0), 2),
        jr.split(jr.PRNGKey(0), 2),
        jnp.zeros(2),
        jnp.zeros(3, jnp.uint32),
        jnp.array(3),
        np.array([1, 2]),
    ],
)
def test_other_values_are_refused_in_one_line(key):
    with pytest.raises(ValueError, match="key: expected one random key or a non-neg") as error:
        as_key(key)
    assert "\n" not in str(error.value)


def test_refinements_take_an_integer_seed():
    refinement = relbo.Refinement(relbo.SGLD(0.1), num_steps=1)
    logdensity_fn = lambda z: -jnp.sum(z**2)

    @eqx.filter_jit
    def calls(key):
        return (
            BASE.sample(key)[0],
            refinement(key, BASE, logdensity_fn).position,
            refinement.run(key, BASE, logdensity_fn, num_draws=1).position,
            relbo.refined_objective(key, refinement, BASE, logdensity_fn).value,
        )

    for one, other in zip(calls(3), calls(jr.key(3)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
