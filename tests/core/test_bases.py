"""Bases: densities against scipy, whitening against the Jacobian."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import relbo

pytestmark = pytest.mark.usefixtures("x64")

LOC = np.array([0.3, -1.0, 2.0])
TRIL = np.array([[0.5, 0.0, 0.0], [0.3, 1.2, 0.0], [-0.4, 0.1, 0.7]])


def bases():
    return {
        "diagonal": (relbo.DiagonalNormal(LOC, np.diagonal(TRIL)), np.diag(np.diagonal(TRIL))),
        "full": (relbo.MultivariateNormal(LOC, TRIL), TRIL),
        "standard": (relbo.StandardNormal(jnp.zeros(3)), np.eye(3)),
    }


@pytest.mark.parametrize("name", ["diagonal", "full", "standard"])
def test_density_and_whitening_match_scipy(name):
    base, tril = bases()[name]
    loc = np.zeros(3) if name == "standard" else LOC
    position, log_q = base.sample(jr.key(0))
    expected = multivariate_normal(loc, tril @ tril.T).logpdf(position)
    np.testing.assert_allclose(log_q, expected, rtol=1e-10)
    np.testing.assert_allclose(base.log_prob(position), expected, rtol=1e-10)
    np.testing.assert_allclose(base.centre, loc)
    _, log_det = base.transform(position)
    jacobian = jax.jacfwd(lambda u: base.transform(u)[0])(position)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-10, atol=1e-12)


def test_density_of_a_flow():
    flow = relbo.TransformedNormal(lambda u: (jnp.exp(u), jnp.sum(u)), jnp.zeros(2))
    position, log_q = flow.sample(jr.key(0))
    expected = np.sum(-0.5 * np.log(position) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(position))
    np.testing.assert_allclose(log_q, expected, rtol=1e-10)
    np.testing.assert_allclose(flow.centre, 1.0)


def test_a_dirac_has_no_density():
    base = relbo.Dirac({"a": jnp.ones(2)})
    position, log_q = base.sample(jr.key(0))
    np.testing.assert_array_equal(position["a"], 1.0)
    assert log_q == 0
    assert not base.has_density


def test_one_scale_applies_to_a_whole_pytree():
    base = relbo.DiagonalNormal({"a": jnp.zeros(2), "b": jnp.zeros(())}, 0.5)
    assert jax.tree.all(jax.tree.map(lambda s: bool(jnp.allclose(s, 0.5)), base.scale.value))
