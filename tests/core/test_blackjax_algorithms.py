"""Refinements under BlackJAX's own protocol, run by BlackJAX's own loops."""

import functools

import blackjax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from blackjax.util import run_inference_algorithm, store_only_expectation_values, thin_algorithm

import relbo

MEAN, SD, SIZE = 3.0, 2.0, 40
POSITION = {"x": jnp.full((SIZE,), MEAN)}
BASE = relbo.DiagonalNormal(POSITION, SD)


def logdensity(position):
    return -0.5 * jnp.sum(((position["x"] - MEAN) / SD) ** 2)


def sampler(kernel, base=BASE, **options):
    refinement = relbo.Refinement(kernel, num_steps=2, **options)
    return relbo.as_sampling_algorithm(refinement, base, logdensity)


@pytest.mark.parametrize(
    ("kernel", "bias"),
    [
        # In whitened coordinates the target is N(0, 1), and the stationary variance is exact.
        (relbo.SGLD(0.5), 1 / (1 - 0.5 / 2)),
        (relbo.Underdamped(1.0, 0.5), 1 / (1 - 1.0**2 / 4)),
        (relbo.Underdamped(0.8, 0.5, num_leapfrogs=2), 1 / (1 - 0.8**2 / 4)),
        (relbo.SGLD(relbo.PerStep(jnp.array([0.1, 0.5]))), 1 / (1 - 0.5 / 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_chains_have_the_stationary_variance_of_the_last_step(kernel, bias):
    algorithm = sampler(kernel)
    assert isinstance(algorithm, blackjax.SamplingAlgorithm)
    _, (states, info) = run_inference_algorithm(
        jr.key(0), algorithm, 1500, initial_position=POSITION
    )
    assert jnp.all(info.is_finite)
    draws = np.asarray(states.position["x"])[50:]
    # A chain of these steps gives at least one independent draw in six.
    number = draws.size / 6
    assert abs(draws.mean() - MEAN) < 5 * SD * (bias / number) ** 0.5
    assert abs(draws.var() / SD**2 / bias - 1) < 5 * (2 / number) ** 0.5
    expected = jax.vmap(logdensity)(states.position)
    np.testing.assert_allclose(states.logdensity, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", ["whitened", "unconstrained"])
def test_steps_are_those_of_the_refinement(space):
    """Without noise a chain is the run of the refinement itself."""
    base = relbo.MultivariateNormal(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.5, 2.0]]))
    target = lambda z: -0.5 * jnp.sum((z - 1.0) ** 2)
    refinement = relbo.Refinement(
        relbo.SGD(0.3), relbo.ParticleAccount(), num_steps=1, space=space
    )
    path = refinement.run(0, base, target, num_draws=5)
    algorithm = relbo.as_sampling_algorithm(refinement, base, target)
    state = algorithm.init(path.position[0])
    for expected in path.position[1:]:
        state, _ = algorithm.step(jr.key(0), state)
        np.testing.assert_allclose(state.position, expected, rtol=1e-5, atol=1e-6)


def test_other_tools_of_blackjax_take_a_refinement():
    algorithm, transform = store_only_expectation_values(
        thin_algorithm(sampler(relbo.SGLD(0.5)), 3), lambda state: state.position["x"]
    )
    start = algorithm.init(sampler(relbo.SGLD(0.5)).init(POSITION))
    _, (averages, _) = run_inference_algorithm(
        jr.key(0), algorithm, 300, initial_state=start, transform=transform
    )
    assert abs(averages[-1].mean() - MEAN) < 5 * SD * (1.34 / (300 * SIZE)) ** 0.5


def test_a_chain_stays_where_the_next_step_is_not_finite():
    cliff = lambda z: jnp.where(z[0] > 0.1, jnp.nan, 10.0 * z[0])
    refinement = relbo.Refinement(
        relbo.SGD(0.1), relbo.ParticleAccount(), num_steps=1, space="unconstrained"
    )
    algorithm = relbo.as_sampling_algorithm(
        refinement, relbo.DiagonalNormal(jnp.zeros(1)), cliff
    )
    start = algorithm.init(jnp.zeros(1))
    state, info = algorithm.step(jr.key(0), start)
    assert not info.is_finite
    np.testing.assert_array_equal(state.position, start.position)


def test_training_reaches_the_evidence_and_goes_on_as_a_chain():
    guide = relbo.as_vi_algorithm(
        logdensity, optax.adam(0.05), relbo.Refinement(num_steps=2), num_draws=8
    )
    assert isinstance(guide, blackjax.VIAlgorithm)
    start = guide.init({"x": jnp.zeros(SIZE)})
    state, (_, info) = run_inference_algorithm(jr.key(1), guide, 300, initial_state=start)
    exact = SIZE * np.log(SD * np.sqrt(2 * np.pi))
    reached = np.asarray(info.objective)[-50:]
    assert exact - 3.0 < reached.mean() < exact + 3 * reached.std() / 50**0.5
    draws = np.asarray(guide.sample(jr.key(2), state, 500)["x"])
    assert draws.shape == (500, SIZE)
    assert abs(draws.mean() - MEAN) < 0.2
    assert abs(draws.std() / SD - 1) < 0.2
    chain = relbo.as_sampling_algorithm(state.refinement, state.base, logdensity)
    _, (_, steps) = run_inference_algorithm(
        jr.key(3), chain, 10, initial_position={"x": jnp.zeros(SIZE)}
    )
    assert jnp.all(steps.is_finite)


@pytest.mark.parametrize(
    "make",
    [
        lambda refinement: relbo.as_sampling_algorithm(refinement, BASE, logdensity),
        functools.partial(relbo.as_vi_algorithm, logdensity, optax.adam(0.1)),
    ],
)
def test_interacting_particles_are_refused(make):
    with pytest.raises(ValueError, match="particles of SVGD move together"):
        make(relbo.Refinement(relbo.SVGD(0.1), relbo.ParticleAccount(), num_steps=1))


def test_a_base_without_an_inverse_is_refused():
    base = relbo.TransformedNormal(lambda u: (u, jnp.zeros(())), jnp.zeros(2))
    algorithm = relbo.as_sampling_algorithm(
        relbo.Refinement(relbo.SGLD(0.1), num_steps=1), base, lambda z: -jnp.sum(z**2)
    )
    with pytest.raises(ValueError, match="base: TransformedNormal has no map"):
        algorithm.init(jnp.zeros(2))
