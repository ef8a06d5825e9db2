"""The density of the funnel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from relbo_paper.models import FUNNEL_SCALE, funnel_logdensity


def test_density_is_a_product_of_two_normals():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 2)) * 2
    ours = jax.vmap(funnel_logdensity)(jnp.asarray(points))
    across = stats.norm.logpdf(points[:, 1], scale=np.exp(points[:, 0]))
    expected = stats.norm.logpdf(points[:, 0], scale=FUNNEL_SCALE) + across
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4)


def test_density_is_normalised():
    # In units of the funnel's width the density is smooth, so that the rectangle rule is exact
    # up to rounding; dz2 = exp(z1) du.
    log_width = jnp.linspace(-12, 12, 401)
    unit = jnp.linspace(-9, 9, 401)
    cell = (log_width[1] - log_width[0]) * (unit[1] - unit[0])

    def term(w, u):
        return jnp.exp(funnel_logdensity(jnp.stack([w, jnp.exp(w) * u])) + w)

    total = jnp.sum(jax.vmap(lambda w: jax.vmap(lambda u: term(w, u))(unit))(log_width)) * cell
    assert float(total) == pytest.approx(1.0, abs=1e-4)


def test_gradient_is_finite_in_the_neck():
    value, grad = jax.value_and_grad(funnel_logdensity)(jnp.array([-8.0, 1e-3]))
    assert jnp.isfinite(value)
    assert jnp.all(jnp.isfinite(grad))
