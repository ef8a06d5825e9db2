"""The log likelihood over spans of steps against the filter over single steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_kalman import random_parts, random_series

from relbo.statespace import LinearGaussian
from relbo.statespace import kalman as _kalman
from relbo.statespace import spans as _spans


def over_spans(parts, series, mask):
    return LinearGaussian(**parts).log_likelihood(series, mask)


def over_steps(parts, series, mask):
    return LinearGaussian(**parts).filter(series, mask).log_likelihood


def symmetric(value):
    """The value as a function of the symmetric part of each covariance."""

    def of_symmetric(parts, series, mask):
        names = ("initial_covariance", "transition_covariance")
        changed = {n: 0.5 * (parts[n] + jnp.swapaxes(parts[n], -1, -2)) for n in names}
        return value({**parts, **changed}, series, mask)

    return of_symmetric


@jax.jit
def values_and_gradients(parts, series, mask):
    functions = (symmetric(f) for f in (over_spans, over_steps))
    return [jax.value_and_grad(f, argnums=(0, 1))(parts, series, mask) for f in functions]


def assert_close(ours, theirs, rtol):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        scale = np.max(np.abs(other)) + 1e-12
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_parts_and_observations_agree(x64, seed):
    """With and without parts that change with time, and with missing entries."""
    series = random_series(seed)
    mask = ~np.isnan(series)
    spans, steps = values_and_gradients(random_parts(seed), np.where(mask, series, 0.0), mask)
    assert_close(spans, steps, rtol=1e-7)


def test_both_modes_of_differentiation_and_second_derivatives_agree(x64):
    parts, series = random_parts(0), random_series(0)[:10]

    def value(log_scales):
        changed = {
            "transition_covariance": parts["transition_covariance"] * jnp.exp(log_scales[0]),
            "observation_variance": parts["observation_variance"] * jnp.exp(log_scales[1]),
        }
        return LinearGaussian(**{**parts, **changed}).log_likelihood(series)

    derivatives = [jax.jacfwd(value), jax.grad(value), jax.hessian(value)]
    many = jnp.array([[0.2, -0.3], [0.2001, -0.3], [0.1999, -0.3]])
    together = jax.jit(lambda many: [jax.vmap(f)(many) for f in derivatives])
    forward, reverse, hessian = together(many)
    assert_close(forward, reverse, rtol=1e-9)
    differences = (reverse[1] - reverse[2]) / 2e-4
    np.testing.assert_allclose(hessian[0, 0], differences, rtol=1e-5)


def test_the_length_of_a_span_does_not_change_the_value(x64, monkeypatch):
    model, series = LinearGaussian(**random_parts(1)), random_series(1)
    usual = float(model.log_likelihood(series))
    sizes = []

    def noted(parts, series):
        cut = _spans.cut_into_spans(parts, series)
        sizes.append(cut[1].values.shape[1])
        return cut

    monkeypatch.setattr(_kalman, "cut_into_spans", noted)
    for number in (4, 16):
        monkeypatch.setattr(_spans, "NUMBERS_PER_SPAN", {"float64": number})
        # Of this program only: other tests use the others again.
        _kalman.log_likelihood.clear_cache()
        np.testing.assert_allclose(model.log_likelihood(series), usual, rtol=1e-10)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("length", [1, 17])
def test_a_series_need_not_fill_the_last_span(x64, length):
    model, series = LinearGaussian(**random_parts(0)), random_series(0)[:length]
    both = jax.jit(lambda x: (model.log_likelihood(x), model.filter(x).log_likelihood))
    over_spans, over_steps = both(series)
    np.testing.assert_allclose(over_spans, over_steps, rtol=1e-9)
