"""Annealed paths in both directions, whose weights enclose the evidence."""

import jax.numpy as jnp
import numpy as np
import pytest
from closed_forms import normal_density

import relbo
from relbo.gaussian import (
    Dependence,
    WhiteningNormal,
    annealed_draws,
    compiled_evaluate,
    reversed_log_weights,
)
from relbo.problem import read

SIZE, NUMBER, STEP = 6, 4000, 0.4
FUNNEL_SD = 1.35


@pytest.mark.parametrize("num_steps", [1, 8])
def test_the_weights_of_annealed_draws_average_to_the_evidence(num_steps):
    rng = np.random.default_rng(6)
    mean, covariance, evaluate = normal_density(rng, np.ones(SIZE))
    # Wider than the target: weights of a narrower normal would have no variance.
    wide = WhiteningNormal(mean + 0.3, 1.5 * np.linalg.cholesky(covariance))
    draws, log_weights = annealed_draws(
        rng, evaluate, wide, num_points=20_000, num_steps=num_steps, step_size=0.4
    )
    weights = np.exp(log_weights)
    stderr = weights.std() / len(weights) ** 0.5
    assert abs(weights.mean() - 1.0) < 4 * stderr
    assert stderr < 0.05
    assert draws.shape == (20_000, SIZE)


def test_more_steps_make_better_weights():
    rng = np.random.default_rng(7)
    mean, covariance, evaluate = normal_density(rng, np.ones(SIZE))
    wide = WhiteningNormal(mean + 1.0, 1.5 * np.linalg.cholesky(covariance))
    spreads = []
    for num_steps in (1, 4, 16):
        _, log_weights = annealed_draws(
            rng, evaluate, wide, num_points=4000, num_steps=num_steps, step_size=0.4
        )
        spreads.append(log_weights.std())
    assert spreads[0] > spreads[1] > spreads[2]


def log_weights_of_both(rng, evaluate, normal, posterior_draws, num_steps):
    """Log weights of paths from the normal, and of paths back from exact posterior draws."""
    options = {"num_steps": num_steps, "step_size": STEP}
    _, forward = annealed_draws(rng, evaluate, normal, num_points=NUMBER, **options)
    white = normal.pull(posterior_draws)
    return forward, reversed_log_weights(rng, evaluate, normal, white, **options)


def conjugate_case(rng):
    mean, covariance, evaluate = normal_density(rng, np.ones(SIZE))
    root = np.linalg.cholesky(covariance)
    wide = WhiteningNormal(mean + 0.3, 1.3 * root)
    return evaluate, wide, mean + rng.normal(size=(NUMBER, SIZE)) @ root.T


def funnel_case(rng):
    """A funnel of evidence 1, in coordinates that straighten most of it."""

    def logdensity(z):
        parts = -0.5 * jnp.log(2 * jnp.pi) - jnp.array([jnp.log(FUNNEL_SD), z[0]])
        squares = jnp.square(z / jnp.stack([jnp.array(FUNNEL_SD), jnp.exp(z[0])]))
        return jnp.sum(parts - 0.5 * squares)

    problem = read(relbo.model_from_logdensity(logdensity, jnp.zeros(2)))
    none = Dependence.none(2)
    slopes = np.zeros_like(none.log_scale)
    slopes[1, 0] = 0.9 * FUNNEL_SD
    normal = WhiteningNormal(
        np.array([0.1, 0.0]), np.array([1.5, 1.3]), none._replace(log_scale=slopes)
    )
    draws = rng.normal(size=(NUMBER, 2)) * FUNNEL_SD
    draws[:, 1] = np.exp(draws[:, 0]) * rng.normal(size=NUMBER)
    return compiled_evaluate(problem, NUMBER), normal, draws


CASES = {"conjugate": conjugate_case, "funnel": funnel_case}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_steps", [1, 16])
def test_both_directions_enclose_the_evidence(name, num_steps):
    """All evidences are 1, so the log weights average below zero, and above on the way back.

    The weights of one direction and the inverse weights of the other average to one.
    """
    rng = np.random.default_rng(8)
    forward, backward = log_weights_of_both(rng, *CASES[name](rng), num_steps)
    for weights in (np.exp(forward), np.exp(-backward)):
        stderr = weights.std() / NUMBER**0.5
        assert stderr < 0.1
        assert abs(weights.mean() - 1.0) < 4 * stderr
    error = lambda values: values.std() / NUMBER**0.5
    assert forward.mean() < -4 * error(forward)
    assert backward.mean() > 4 * error(backward)


@pytest.mark.parametrize("name", CASES)
def test_longer_paths_bring_both_ends_together(name):
    rng = np.random.default_rng(9)
    case = CASES[name](rng)
    gaps = []
    for num_steps in (1, 4, 16):
        forward, backward = log_weights_of_both(rng, *case, num_steps)
        gaps.append(backward.mean() - forward.mean())
    assert gaps[0] > gaps[1] > gaps[2] > 0
    # The reversed path is the same path: close to equilibrium both ends are as far away.
    assert 0.5 < -backward.mean() / forward.mean() < 2.0


def test_a_posterior_draw_off_the_support_has_no_finite_weight():
    _, _, inside = normal_density(np.random.default_rng(0), np.ones(SIZE))

    def evaluate(normal, white):
        here = inside(normal, white)
        return here._replace(logdensity=np.where(white[:, 0] > 0, -np.inf, here.logdensity))

    normal = WhiteningNormal(np.zeros(SIZE), np.eye(SIZE))
    white = np.ones((4, SIZE))
    found = reversed_log_weights(
        np.random.default_rng(1), evaluate, normal, white, num_steps=2, step_size=STEP
    )
    assert np.all(found == np.inf)
