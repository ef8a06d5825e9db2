"""Every account against its closed form, where target and base are normal and steps linear.

One coordinate: log p(z) = c - lam/2 (z - m)^2, q0 = N(b, s). The expectations below are moments
pushed through linear maps with numpy, and share no code with the library.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from registry import plain_refinement
from targets import mean_and_error

LAM, M, C = 1.7, 0.6, -2.0
B, S = -0.3, 0.8
ETA, T = 0.15, 4
A = 1 - ETA * LAM
ENTROPY = 0.5 * np.log(2 * np.pi * np.e * S**2)
SECOND_MOMENT = (B - M) ** 2 + S**2


def logdensity(z):
    return C - 0.5 * LAM * jnp.sum(jnp.square(z - M))


def expected_logdensity(second_moment):
    return C - 0.5 * LAM * second_moment


def langevin_moments():
    """E (z_t - m)^2 for t = 0..T under Langevin steps."""
    moments = [SECOND_MOMENT]
    for _ in range(T):
        moments.append(A**2 * moments[-1] + 2 * ETA)
    return moments


def particle_with_sgd():
    return expected_logdensity(A ** (2 * T) * SECOND_MOMENT) + ENTROPY


def change_of_variables():
    return particle_with_sgd() + T * np.log(abs(A))


def gaussian_from_mean():
    return expected_logdensity((A**T * (B - M)) ** 2 + S**2) + ENTROPY


def gaussian_from_draw():
    return expected_logdensity(A ** (2 * T) * SECOND_MOMENT + S**2) + ENTROPY


def particle_with_sgld():
    return expected_logdensity(langevin_moments()[-1]) + ENTROPY


def monte_carlo():
    return particle_with_sgld() + T * 0.5 * np.log(4 * np.pi * np.e * ETA)


def reverse_kernel():
    # z_{t-1} - m - a (z_t - m) = (1 - a^2)(z_{t-1} - m) - a sqrt(2 eta) xi
    log_reverse = sum(
        -0.5 * np.log(4 * np.pi * ETA) - ((1 - A**2) ** 2 * moment + 2 * ETA * A**2) / (4 * ETA)
        for moment in langevin_moments()[:-1]
    )
    return monte_carlo() + log_reverse


EPSILON, GAMMA = 0.5, 0.6


def underdamped(num_leapfrogs, gamma):
    """Moments of (z - m, rho), pushed through refreshments and leapfrogs as matrices."""
    kick = np.array([[1.0, 0.0], [-0.5 * EPSILON * LAM, 1.0]])
    drift = np.array([[1.0, EPSILON], [0.0, 1.0]])
    leapfrog = np.linalg.matrix_power(kick @ drift @ kick, num_leapfrogs)
    refresh = np.diag([1.0, gamma])
    moments = np.diag([SECOND_MOMENT, 1.0])
    kinetic_gain = 0.0
    for _ in range(T):
        moments = refresh @ moments @ refresh + np.diag([0.0, 1 - gamma**2])
        before = moments[1, 1]
        moments = leapfrog @ moments @ leapfrog.T
        kinetic_gain += 0.5 * (moments[1, 1] - before)
    return expected_logdensity(moments[0, 0]) + ENTROPY - kinetic_gain


CASES = {
    "sgd-particle": (relbo.SGD(ETA), relbo.ParticleAccount(), particle_with_sgd()),
    "sgd-volume": (relbo.SGD(ETA), relbo.ChangeOfVariablesAccount(), change_of_variables()),
    "sgd-gaussian": (relbo.SGD(ETA), relbo.GaussianAccount(), gaussian_from_mean()),
    "sgd-gaussian-draw": (relbo.SGD(ETA), relbo.GaussianAccount("draw"), gaussian_from_draw()),
    "sgld-particle": (relbo.SGLD(ETA), relbo.ParticleAccount(), particle_with_sgld()),
    "sgld-mc": (relbo.SGLD(ETA), relbo.MonteCarloAccount(), monte_carlo()),
    "sgld-reverse": (relbo.SGLD(ETA), relbo.ReverseKernelAccount(), reverse_kernel()),
    "psgld-reverse": (
        relbo.PSGLD(2 * ETA, metric=0.5),
        relbo.ReverseKernelAccount(),
        reverse_kernel(),
    ),
    "underdamped-reverse": (
        relbo.Underdamped(EPSILON, GAMMA),
        relbo.ReverseKernelAccount(),
        underdamped(1, GAMMA),
    ),
    "hmc-reverse": (
        relbo.Underdamped(EPSILON, 0.0, num_leapfrogs=3),
        relbo.ReverseKernelAccount(),
        underdamped(3, 0.0),
    ),
    "metric-reverse": (
        relbo.Underdamped(EPSILON / 2, GAMMA, metric=4.0),
        relbo.ReverseKernelAccount(),
        underdamped(1, GAMMA),
    ),
}


def estimates(kernel, account, num_draws=40_000, base=None, **options):
    refinement = plain_refinement(kernel, account, num_steps=T, max_step_size=1.0, **options)
    base = relbo.DiagonalNormal(jnp.array([B]), S) if base is None else base
    return jax.jit(
        lambda key: (
            relbo.refined_objective(
                key, refinement, base, logdensity, num_draws=num_draws
            ).log_weights
        )
    )(jr.key(17))


@pytest.mark.parametrize("case", CASES)
def test_account_agrees_with_its_closed_form(case):
    kernel, account, expected = CASES[case]
    mean, error = mean_and_error(estimates(kernel, account))
    assert error < 0.02
    assert abs(mean - expected) < 4 * error


def test_weights_from_the_exact_posterior_are_constant():
    """From the posterior itself, the weights of short reversible steps are log Z."""
    log_evidence = C + 0.5 * np.log(2 * np.pi / LAM)
    base = relbo.DiagonalNormal(jnp.array([M]), LAM**-0.5)
    weights = estimates(relbo.Underdamped(1e-2), relbo.ReverseKernelAccount(), 100, base)
    np.testing.assert_allclose(weights, log_evidence, atol=1e-4)


def test_langevin_is_underdamped_with_full_refreshment():
    """One leapfrog of size eps with a fresh momentum is a Langevin step of size eps^2 / 2."""
    langevin = mean_and_error(estimates(relbo.SGLD(ETA), relbo.ReverseKernelAccount()))
    hamiltonian = mean_and_error(
        estimates(relbo.Underdamped((2 * ETA) ** 0.5, 0.0), relbo.ReverseKernelAccount())
    )
    assert abs(langevin[0] - hamiltonian[0]) < 4 * np.hypot(langevin[1], hamiltonian[1])


@pytest.mark.parametrize("sizes", [np.full(T, ETA), np.array([0.3, 0.05, 0.1, 0.2])])
def test_annealed_langevin_closed_form(sizes):
    """Along the path q0^(1-b) p^b a normal target stays normal: moments in closed form.

    A reverse move with another step's size or temperature would still give a bound, only a
    looser one, so that only the value can reveal it.
    """
    mean, variance, expected = B, S**2, ENTROPY
    for beta, size in zip(np.arange(1, T + 1) / T, sizes, strict=True):
        precision = (1 - beta) / S**2 + beta * LAM
        centre = ((1 - beta) * B / S**2 + beta * LAM * M) / precision
        a = 1 - size * precision
        second = (mean - centre) ** 2 + variance
        residual = (1 - a**2) ** 2 * second + 2 * size * a**2
        # minus log forward, plus log reverse: the constants cancel
        expected += 0.5 - residual / (4 * size)
        mean, variance = centre + a * (mean - centre), a**2 * variance + 2 * size
    expected += expected_logdensity((mean - M) ** 2 + variance)
    for space, scale in [("unconstrained", 1.0), ("whitened", S**2)]:
        kernel = relbo.SGLD(relbo.PerStep(jnp.asarray(sizes / scale, jnp.float32)))
        found, error = mean_and_error(
            estimates(kernel, relbo.ReverseKernelAccount(), anneal=True, space=space)
        )
        assert error < 0.02
        assert abs(found - expected) < 4 * error
