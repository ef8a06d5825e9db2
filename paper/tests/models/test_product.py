"""The product with shared weights, compared with `@`."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from relbo_paper.models.product import product

POINTS = jr.normal(jr.key(0), (2, 3, 4))
WEIGHTS = jr.normal(jr.key(1), (4, 5))


def _plain(point, weights):
    return point @ weights


def _over_two_axes(multiply):
    return jax.vmap(jax.vmap(multiply, (0, None)), (0, None))


def _bent(multiply):
    """Nonlinear in both arguments, so that second derivatives do not vanish."""
    return lambda points, weights: jnp.sum(
        jnp.sin(_over_two_axes(multiply)(points, jnp.tanh(weights))) ** 2
    )


def _step_inside(multiply):
    """The gradient of a gradient for each point, as in the steps of a sampler."""

    def of_one(point, weights):
        climb = jax.grad(lambda z: jnp.sum(jnp.sin(multiply(z, weights))))
        return jnp.sum(jnp.cos(multiply(point + 0.1 * climb(point), weights)))

    return lambda points, weights: jnp.sum(_over_two_axes(of_one)(points, weights))


def _assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


TRANSFORMS = {
    "value": lambda fn: fn,
    "gradient": lambda fn: jax.grad(fn, (0, 1)),
    "reverse over reverse": lambda fn: jax.jacrev(jax.grad(fn, (0, 1)), (0, 1)),
    "forward over reverse": lambda fn: jax.jacfwd(jax.grad(fn, (0, 1)), (0, 1)),
    "reverse over forward": lambda fn: jax.jacrev(jax.jacfwd(fn, (0, 1)), (0, 1)),
}


@pytest.mark.parametrize("function", [_bent, _step_inside])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_values_and_derivatives_equal_those_of_the_plain_product(transform, function):
    found, expected = (
        jax.jit(TRANSFORMS[transform](function(multiply)))(POINTS, WEIGHTS)
        for multiply in (product, _plain)
    )
    _assert_close(found, expected)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 1)])
def test_weights_may_be_batched_too(axes):
    point = jr.normal(jr.key(2), (4,) if axes[0] is None else (4, 4))
    weights = WEIGHTS if axes[1] is None else jr.normal(jr.key(3), (4, 4, 5))

    def run(multiply):
        squared = lambda point, weights: jnp.sum(multiply(point, weights) ** 2)
        return jax.jit(jax.vmap(jax.value_and_grad(squared, (0, 1)), axes))(point, weights)

    _assert_close(run(product), run(_plain))


def test_gradients_of_weights_are_products_of_two_matrices():
    gradient = jax.grad(_step_inside(product), 1)
    program = jax.jit(gradient).lower(POINTS, WEIGHTS).as_text()
    # The products that sum over the 2 times 3 points.
    sums = [line for line in program.splitlines() if "dot_general" in line and "6x" in line]
    assert len(sums) == 3
    for line in sums:
        shapes = [part.split(">")[0] for part in line.split("tensor<")[1:]]
        assert all(shape.count("x") == 2 for shape in shapes), line


def test_devices_with_shards_of_the_points_exchange_only_the_sum():
    """With merged axes every device would compute the whole product."""
    found = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["True", "all-reduce"]


SHARED = """
import re, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from relbo_paper.models.product import product

jax.config.update("jax_num_cpu_devices", 2)
mesh = Mesh(np.array(jax.devices()), ("shards",))
points = jax.device_put(
    np.arange(24.0).reshape(2, 4, 3), NamedSharding(mesh, PartitionSpec(None, "shards"))
)
many = jax.vmap(jax.vmap(product, (0, None)), (0, None))
gradient = jax.jit(jax.grad(lambda weights, points: jnp.sum(many(points, weights) ** 2)))
weights = jnp.ones((3, 2))
expected = 2 * jnp.einsum("sni,snj->ij", points, points @ weights)
compiled = gradient.lower(weights, points).compile().as_text()
calls = re.findall(r"(all-[a-z]+|collective-[a-z]+)\\(", compiled)
print(bool(jnp.allclose(gradient(weights, points), expected)), *calls)
"""


def test_mixed_precisions_give_the_higher_one():
    assert product(jnp.ones(4, jnp.bfloat16), WEIGHTS).dtype == WEIGHTS.dtype
