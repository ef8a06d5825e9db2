"""Heavy models are evaluated in groups, with the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.gaussian import WhiteningNormal, compiled_evaluate, evaluate_white, whitening_map
from relbo.problem import model_from_logdensity, read

SIZE = 3


def tall(num_rows):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(num_rows, SIZE)), jnp.float32)
    return lambda z: -jnp.sum(jnp.log1p(jnp.exp(rows @ z))) - 0.5 * jnp.sum(z**2)


def has_loop(problem, number):
    normal = WhiteningNormal(np.zeros(SIZE), np.eye(SIZE))
    whitening = whitening_map(normal, np.dtype(np.float32))
    points = jnp.zeros((number, SIZE), jnp.float32)
    program = jax.make_jaxpr(lambda z: evaluate_white(problem, whitening, z))(points)
    return "scan[" in str(program)


@pytest.mark.parametrize(
    ("num_rows", "number", "expected"),
    [
        (20_000, 64, True),
        (20, 64, False),  # all of them fit into the cache
        (20_000, 62, False),  # no group of a fair size divides the number
    ],
)
def test_groups_where_the_cache_is_too_small(num_rows, number, expected):
    assert (
        has_loop(read(model_from_logdensity(tall(num_rows), jnp.zeros(SIZE))), number)
        is expected
    )


def test_groups_change_nothing():
    logdensity = tall(20_000)
    problem = read(model_from_logdensity(logdensity, jnp.zeros(SIZE)))
    points = np.random.default_rng(1).normal(size=(64, SIZE)).astype(np.float32)
    here = compiled_evaluate(problem, 64)(WhiteningNormal(np.zeros(SIZE), np.eye(SIZE)), points)
    values, scores = jax.vmap(jax.value_and_grad(logdensity))(points)
    np.testing.assert_allclose(here.logdensity, values, rtol=1e-5)
    np.testing.assert_allclose(here.score, scores, rtol=1e-4, atol=0.02)
