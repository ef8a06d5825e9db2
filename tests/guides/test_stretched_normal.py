"""The normal with stretched axes, as a guide and as the base of large models."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from programs import DATA, conjugate, conjugate_evidence, elbos, fit
from relbo.guides.stretched_normal import StretchTransform
from targets import mean_and_error

SIZE = 201


def walk():
    """A random walk with correlations over many steps, whose evidence is 1."""
    numpyro.sample("walk", dist.GaussianRandomWalk(1.0, SIZE))


@pytest.mark.parametrize("num_axes", [0, 2, 4])
def test_the_transform_has_an_inverse_and_a_determinant(num_axes):
    axes = jnp.linalg.qr(jr.normal(jr.key(0), (4, 4)))[0][:, :num_axes]
    stretch = jnp.array([3.0, 0.2, 1.5, 0.7])[:num_axes]
    transform = StretchTransform(jnp.arange(4.0), jnp.array([1.0, 2, 3, 4]), axes, stretch)
    u = jr.normal(jr.key(1), (5, 4))
    np.testing.assert_allclose(transform.inv(transform(u)), u, rtol=1e-4, atol=1e-5)
    log_det = jnp.linalg.slogdet(jax.jacobian(transform)(u[0]))[1]
    found = transform.log_abs_det_jacobian(u, transform(u))
    np.testing.assert_allclose(found, jnp.full(5, log_det), rtol=1e-4, atol=1e-5)


def test_axes_that_are_zero_count_for_nothing():
    axes = jnp.eye(3)[:, :2].at[:, 1].set(0.0)
    transform = StretchTransform(jnp.zeros(3), jnp.ones(3), axes, jnp.array([2.0, 5.0]))
    np.testing.assert_allclose(transform(jnp.ones(3)), jnp.array([2.0, 1.0, 1.0]))
    found = transform.log_abs_det_jacobian(jnp.ones(3), None)
    np.testing.assert_allclose(found, jnp.log(2.0), rtol=1e-6)


def test_without_a_warm_start_it_is_a_diagonal_normal():
    guide = relbo.AutoStretchedNormal(walk, init_scale=0.5)
    params = fit(walk, guide, num_iterations=1)
    assert params["auto_axes"].shape == (SIZE, 0)


def test_a_warm_start_finds_all_correlations():
    guide = relbo.AutoRefined(walk, num_steps=0)
    params = {**fit(walk, guide, num_iterations=1), **guide.warm_start(0)}
    assert type(guide.base) is relbo.AutoStretchedNormal
    mean, error = mean_and_error(elbos(walk, guide, params))
    assert -0.5 < mean < 4 * error + 1e-3


def test_a_warm_start_finds_the_axes_that_matter_most(monkeypatch):
    monkeypatch.setattr("relbo.gaussian.stretching.MAX_ENTRIES", SIZE * 40)
    guide = relbo.AutoRefined(walk, num_steps=0)
    params = {**fit(walk, guide, num_iterations=1), **guide.warm_start(0)}
    assert params["auto_axes"].shape == (SIZE, 40)
    mean, _ = mean_and_error(elbos(walk, guide, params))
    # The best diagonal normal: 0.5 (log det of the precision's diagonal - log det of it).
    diagonal = -0.5 * ((SIZE - 1) * np.log(2.0))
    assert 0.6 * diagonal < mean < 0.0


def test_a_warm_start_of_a_small_model_is_exact():
    guide = relbo.AutoRefined(conjugate, base=relbo.AutoStretchedNormal, num_steps=0)
    params = {**fit(conjugate, guide, DATA, num_iterations=1), **guide.warm_start(0, DATA)}
    values = elbos(conjugate, guide, params, DATA)
    np.testing.assert_allclose(values, conjugate_evidence(), atol=0.01)


def test_a_fit_of_many_dimensions_starts_warm():
    trained = relbo.fit(0, walk, num_iterations=100, progress=False)
    assert trained.params["auto_axes"].shape == (SIZE, SIZE)
    assert np.all(np.isfinite(trained.losses))
    assert np.mean(trained.losses[-20:]) < 1.0
