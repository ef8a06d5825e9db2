"""The paper's analysis (its section 4 and appendix A), as tests."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from registry import plain_refinement
from targets import TARGETS, funnel, log_weights, mixture


@pytest.mark.parametrize(("mode", "factor"), [("fast", 1.0), ("full", 2.0)])
@pytest.mark.parametrize("logdensity_fn", [funnel, mixture])
@pytest.mark.usefixtures("x64")
def test_refined_gradient_is_the_original_plus_a_second_order_correction(
    logdensity_fn, mode, factor
):
    """To first order in eta: g + eta H g with constant displacements, g + 2 eta H g without.

    The paper's Taylor expansion keeps the displacement constant; differentiating through it
    gives the correction once more.
    """
    start = jnp.array([0.4, -0.3])
    gradient = jax.grad(logdensity_fn)(start)
    correction = jax.hessian(logdensity_fn)(start) @ gradient

    def refined_gradient(step_size):
        refinement = plain_refinement(
            relbo.SGD(step_size), relbo.ParticleAccount(), num_steps=1, mode=mode
        )
        objective = lambda base: (
            relbo.refined_objective(jr.key(0), refinement, base, logdensity_fn).value
        )
        return eqx.filter_jit(eqx.filter_grad(objective))(relbo.Dirac(start)).loc

    found = (refined_gradient(1e-6) - gradient) / 1e-6
    np.testing.assert_allclose(found, factor * correction, rtol=1e-3)


def flow_moments(num_steps, num_particles=256, step_size=0.0125, bandwidth=0.1):
    """Means and variances along the Fokker-Planck flow towards N(1, 0.5)."""
    logdensity_fn = lambda z: -2.0 * jnp.sum(jnp.square(z - 1.0))
    # Quantiles instead of draws leave only the error of the flow itself.
    grid = (jnp.arange(num_particles) + 0.5) / num_particles
    position = -1.0 + 1.5 * jax.scipy.special.ndtri(grid)[:, None]
    kernel = relbo.FokkerPlanckFlow(step_size, bandwidth=bandwidth)

    def step(position, _):
        score = jax.vmap(jax.grad(logdensity_fn))(position)
        position = kernel.depart(None, position, score, None).position
        return position, (jnp.mean(position), jnp.var(position))

    _, moments = jax.lax.scan(step, position, None, length=num_steps)
    return [
        np.concatenate([[first], values])
        for first, values in zip((-1.0, 2.25), moments, strict=True)
    ]


def langevin_moments(num_steps, step_size=0.0125):
    mean, variance = [-1.0], [2.25]
    for _ in range(num_steps):
        contraction = 1 - 4 * step_size
        mean.append(1 + contraction * (mean[-1] - 1))
        variance.append(contraction**2 * variance[-1] + 2 * step_size)
    return np.array(mean), np.array(variance)


def test_fokker_planck_particles_have_the_marginals_of_langevin_dynamics():
    """Proposition 1, up to the width of the kernel estimate and the step size."""
    mean, variance = flow_moments(60)
    expected_mean, expected_variance = langevin_moments(60)
    np.testing.assert_allclose(mean, expected_mean, atol=0.02)
    np.testing.assert_allclose(variance, expected_variance, rtol=0.06)
    # Without the score of their own density the particles would collapse.
    assert variance[-1] > 20 * 2.25 * 0.95 ** (2 * 60)


def test_divergence_to_the_target_falls_along_the_flow():
    mean, variance = flow_moments(60)
    # All densities are normal: KL(N(mean, variance) | N(1, 1/4)) in closed form.
    divergence = 0.5 * (
        4 * variance + 4 * (mean - 1) ** 2 - 1 - np.log(np.maximum(4 * variance, 1e-12))
    )
    assert np.all(np.diff(divergence) < 0)
    assert divergence[-1] < 0.05 * divergence[0]


@pytest.mark.parametrize("target", TARGETS)
def test_sgd_surrogate_is_above_the_plain_elbo_for_moderate_steps(target):
    target = TARGETS[target]
    refined, plain = (
        log_weights(
            jr.key(3),
            plain_refinement(
                relbo.SGD(target.step_size), relbo.ParticleAccount(), num_steps=steps
            ),
            target,
            4000,
            1,
        )
        for steps in (3, 0)
    )
    gain = jnp.mean(refined) - jnp.mean(plain)
    error = jnp.sqrt((jnp.var(refined) + jnp.var(plain)) / 4000)
    assert gain > 2 * error


def test_importance_weighting_tightens_a_bound():
    target = TARGETS["mixture"]
    refinement = plain_refinement(relbo.SGLD(target.step_size), num_steps=2)
    log_w = log_weights(jr.key(4), refinement, target, 8000, 1)
    bounds = [
        jnp.mean(jax.nn.logsumexp(log_w.reshape(-1, size), axis=1) - jnp.log(size))
        for size in (1, 5, 25)
    ]
    assert bounds[0] < bounds[1] < bounds[2] < 0.05
