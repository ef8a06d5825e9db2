"""Quick compilation is used by itself, and inside of other programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo import _compiler
from relbo._compiler import quick_compilation, quick_filter_jit


def twice(x):
    return quick_filter_jit(lambda y: 2 * y)(x)


@pytest.mark.parametrize(
    ("transformed", "expected"),
    [
        (twice, 6.0),
        (jax.jit(twice), 6.0),
        (jax.grad(twice), 2.0),
        (lambda x: jax.vmap(twice)(x[None])[0], 6.0),
        (lambda x: jax.vmap(jax.grad(twice))(x[None])[0], 2.0),
    ],
    ids=["alone", "jit", "grad", "vmap", "vmap of grad"],
)
def test_a_quickly_compiled_function_can_be_transformed(transformed, expected):
    np.testing.assert_allclose(transformed(jnp.array(3.0)), expected)


def test_unknown_options_are_left_out(monkeypatch):
    monkeypatch.setattr(_compiler, "_WANTED", {"xla_no_such_option": True})
    _compiler._known_options.cache_clear()
    assert not quick_compilation()
    _compiler._known_options.cache_clear()
