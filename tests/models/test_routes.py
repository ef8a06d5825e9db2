"""Products with transitions that are mostly zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.models import (
    LinearGaussian,
    autoregression,
    dlm,
    local_level,
    local_linear_trend,
    regression,
    seasonal,
)
from relbo.models._dlm import Block
from relbo.models._routes import all_routes, join_routes, pull, push

BLOCKS = {
    "trend and seasons": lambda: (local_linear_trend(0.1, 0.1, damping=0.9), seasonal(4, 0.2)),
    "level and two seasons": lambda: (local_level(0.1), seasonal(3, 0.2), seasonal(2, 0.1)),
    "autoregression": lambda: (autoregression(0.5, 1.0), local_linear_trend(0.1, 0.1)),
    "regression": lambda: (regression(np.ones((9, 2))), local_level(0.3)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_products_are_those_of_the_matrix(x64, name):
    model = dlm(*BLOCKS[name](), observation_scale=1.0)
    right = np.random.default_rng(0).normal(size=(model.num_states, 3))
    assert model.routes is not None
    for product, matrix in ((push, model.transition), (pull, model.transition.T)):
        by_routes = product(model.transition, model.routes, jnp.asarray(right))
        np.testing.assert_allclose(by_routes, matrix @ right, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_likelihoods_are_those_of_the_matrix(x64, name):
    series = np.random.default_rng(1).normal(size=9)
    model = dlm(*BLOCKS[name](), observation_scale=1.0)
    names = [n for n in vars(model) if n != "routes"]

    def value(parts, routes):
        return LinearGaussian(**parts, routes=routes).log_likelihood(series)

    parts = {n: getattr(model, n) for n in names}
    ours, plain = (jax.value_and_grad(value)(parts, routes) for routes in (model.routes, None))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


def test_an_entry_on_two_routes_counts_once():
    matrix = jnp.array([[2.0, 0.0], [0.0, 3.0]])
    right = jnp.ones((2, 1))
    np.testing.assert_allclose(push(matrix, ((0, 1), (0, 1)), right)[:, 0], [2.0, 3.0])
    np.testing.assert_allclose(pull(matrix, ((0, 1), (1, 0)), right)[:, 0], [2.0, 3.0])


def test_a_block_of_one_s_own_without_routes_is_taken_for_full():
    full = np.random.default_rng(2).normal(size=(3, 3))
    block = Block(jnp.asarray(full), jnp.eye(3), jnp.ones(3), jnp.zeros(3), jnp.eye(3))
    model = dlm(block, seasonal(4, 0.1), observation_scale=1.0)
    right = jnp.eye(7)
    np.testing.assert_allclose(
        push(model.transition, model.routes, right), model.transition, rtol=1e-6
    )
    assert join_routes([all_routes(5), all_routes(1)]) is None


def test_routes_must_be_permutations():
    one = jnp.eye(2)
    with pytest.raises(ValueError, match="routes: expected permutations"):
        LinearGaussian(
            jnp.zeros(2), one, one, one, jnp.ones((1, 2)), jnp.ones(1), routes=((0, 0),)
        )
