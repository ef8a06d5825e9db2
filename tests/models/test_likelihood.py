"""The derivative of the Kalman likelihood, written out, against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_kalman import random_parts, random_series

from relbo.models import LinearGaussian


def written_out(parts, series, mask):
    return LinearGaussian(**parts).log_likelihood(series, mask)


def automatic(parts, series, mask):
    """The filter's own sum of log likelihoods, which JAX differentiates as it stands."""
    return LinearGaussian(**parts).filter(series, mask).log_likelihood


def problem(seed):
    series = random_series(seed)
    mask = ~np.isnan(series)
    return random_parts(seed), np.where(mask, series, 0.0), mask


def assert_close(ours, theirs, rtol=1e-8):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        scale = np.max(np.abs(other)) + 1e-12
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)


def slopes_of(likelihood):
    def value(parts, series, mask):
        # A covariance moves as a whole: only its symmetric part has a meaning.
        even = lambda x: 0.5 * (x + jnp.swapaxes(x, -1, -2))
        covariances = ("initial_covariance", "transition_covariance")
        parts = {**parts, **{name: even(parts[name]) for name in covariances}}
        return likelihood(parts, series, mask)

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1)))


@pytest.mark.parametrize("seed", range(4))
def test_slopes_of_every_part_and_number(x64, seed):
    """With parts that change with time and with parts that do not, and with holes."""
    given = problem(seed)
    ours, theirs = (slopes_of(f)(*given) for f in (written_out, automatic))
    assert_close(ours, theirs, rtol=1e-7)


def by_scale(likelihood):
    parts, series, mask = problem(0)

    def value(log_scales):
        noise = parts["transition_covariance"] * jnp.exp(log_scales[0])
        seen = parts["observation_variance"] * jnp.exp(log_scales[1])
        changed = {"transition_covariance": noise, "observation_variance": seen}
        return likelihood({**parts, **changed}, series, mask)

    return value


def test_both_modes_and_second_derivatives(x64):
    at = jnp.array([0.2, -0.3])
    ours, theirs = by_scale(written_out), by_scale(automatic)
    assert_close(jax.jacfwd(ours)(at), jax.grad(theirs)(at))
    assert_close(jax.hessian(ours)(at), jax.hessian(theirs)(at), rtol=1e-6)
    assert_close(jax.jacrev(jax.grad(ours))(at), jax.hessian(theirs)(at), rtol=1e-6)


def test_batches(x64):
    many = jnp.array([[0.2, -0.3], [0.0, 0.5], [-1.0, 1.0]])
    slope = jax.grad(by_scale(written_out))
    assert_close(jax.vmap(slope)(many), jnp.stack([slope(one) for one in many]))
