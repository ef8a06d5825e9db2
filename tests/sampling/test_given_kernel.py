"""Kernels of BlackJAX as the long run after a fit."""

import functools

import blackjax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo

pytestmark = pytest.mark.usefixtures("x64")

SCALE = np.array([[1.0, 0.0], [30.0, 1.0]])
MEAN = np.array([5.0, -2.0])
SD = np.linalg.norm(SCALE, axis=1)
PRECISION = np.linalg.inv(SCALE @ SCALE.T)


def correlated_normal(position):
    """Standard deviations of 1 and 30, and a correlation of 0.999."""
    return -0.5 * jnp.dot(position - MEAN, PRECISION @ (position - MEAN))


MODEL = relbo.model_from_logdensity(correlated_normal, np.zeros(2))


def slices(logdensity_fn):
    """Leaves no parameter open; its prior is the normal of the fit."""
    likelihood = lambda white: logdensity_fn(white) + 0.5 * jnp.dot(white, white)
    return blackjax.elliptical_slice(likelihood, mean=jnp.zeros(2), cov=jnp.eye(2))


@pytest.mark.parametrize(
    "kernel",
    [
        blackjax.nuts,
        blackjax.mala,
        functools.partial(blackjax.hmc, num_integration_steps=3),
        slices,
    ],
    ids=["nuts", "mala", "hmc", "slices"],
)
def test_a_kernel_samples_the_posterior(kernel):
    posterior = relbo.sample(0, MODEL, kernel=kernel, num_draws=6400, progress=False)
    check = posterior.check()
    assert check.rhat < 1.02, check
    assert "given kernel, in whitened coordinates, started from a fitted" in check.procedure
    draws, error = posterior.draws["position"], check.ess**-0.5
    assert draws.shape == (6400, 2)
    np.testing.assert_array_less(np.abs(draws.mean(0) - MEAN) / SD, 5 * error)
    np.testing.assert_array_less(np.abs(np.log(draws.std(0) / SD)), 5 * error)
    if kernel is not slices:
        assert abs(check.acceptance - 0.8) < 0.1


def test_a_kernel_goes_on_from_its_posterior_as_extend_says():
    options = {"kernel": blackjax.nuts, "num_draws": 640, "progress": False}
    posterior = relbo.sample(0, MODEL, **options)
    with pytest.raises(ValueError, match=r"kernel=kernel, start=posterior"):
        posterior.extend(100)
    more = relbo.sample(1, MODEL, start=posterior, **options)
    assert "given kernel" in more.procedure
    assert more.check().rhat < 1.05


def test_the_evidence_can_be_weighed():
    posterior = relbo.sample(
        0, MODEL, kernel=blackjax.nuts, num_draws=640, num_evidence_draws=640, progress=False
    )
    exact = np.log(2 * np.pi) + np.linalg.slogdet(SCALE)[1]
    assert abs(posterior.log_evidence - exact) < 0.05


def test_open_parameters_are_asked_for():
    with pytest.raises(ValueError, match=r"\['num_integration_steps'\] have no value; write"):
        relbo.sample(0, MODEL, kernel=blackjax.hmc, progress=False)


def test_a_step_size_that_cannot_be_tuned_is_asked_for():
    kernel = lambda logdensity_fn, step_size: blackjax.mclmc(
        logdensity_fn, L=2.0, step_size=step_size
    )
    with pytest.raises(ValueError, match="no acceptance_rate to tune step_size by"):
        relbo.sample(0, MODEL, kernel=kernel, num_draws=128, progress=False)
