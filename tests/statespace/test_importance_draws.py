"""Adaptive importance sampling against quadrature."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from relbo.statespace import importance_draws

SERIES = np.array([1.0, -2.0, 3.0, -1.0])


def program(series):
    """The support of the scale depends on the data, so that each series has its own."""
    scale = numpyro.sample("scale", dist.Uniform(0.0, 10.0 * jnp.std(series)))
    numpyro.sample("series", dist.Normal(0.0, scale), obs=series)


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_draws_and_evidence_match_quadrature(unit):
    found = importance_draws(0, program, unit * SERIES, num_draws=1_000)
    width = 10.0 * np.std(SERIES)
    scale = np.linspace(1e-3, width, 100_000)
    likelihood = np.exp(-0.5 * np.sum(SERIES**2) / scale**2) / (2 * np.pi * scale**2) ** 2
    density = likelihood / width
    weights = density / density.sum()
    mean = weights @ scale
    deviation = np.sqrt(weights @ (scale - mean) ** 2)
    draws = np.asarray(found.draws["scale"]) / unit
    # Five standard errors of the mean of 1,000 draws.
    np.testing.assert_allclose(draws.mean(), mean, atol=5 * deviation / 1_000**0.5)
    np.testing.assert_allclose(draws.std(), deviation, rtol=0.2)
    log_evidence = np.log(density.sum() * (scale[1] - scale[0])) - len(SERIES) * np.log(unit)
    error = 5 * found.evidence.stderr
    assert found.evidence.value == pytest.approx(log_evidence, abs=error)
    assert found.evidence.ess > 1_000


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="num_draws"):
        importance_draws(0, program, SERIES, num_draws=0)
    with pytest.raises(ValueError, match="num_weighed"):
        importance_draws(0, program, SERIES, num_draws=10, num_weighed=10)
