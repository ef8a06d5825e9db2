"""The compiled ensemble: its leapfrogs, its exactness, its one compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from relbo.problem import read
from relbo.sampling import hamiltonian as ensemble
from relbo.sampling.ensemble import METHODS, Ensemble

CHAINS = 16


def regression(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("variance", scale**2)
    numpyro.sample("y", dist.Normal(x @ slope, scale), obs=y)


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2))
    return x, x @ np.array([1.0, -1.0]) + 0.5 * rng.normal(size=20)


@pytest.fixture(scope="module")
def chains():
    with jax.enable_x64(True):
        problem = read(regression, data())
        yield Ensemble(np.random.default_rng(0), problem, CHAINS)


def whitening(ensemble, loc, factor):
    return ensemble.normal._replace(loc=loc, factor=factor)


def by_hand(problem, normal):
    def white_logdensity(white):
        return problem.logdensity(jnp.asarray(normal.loc) + jnp.asarray(normal.factor) @ white)

    return jax.jit(white_logdensity)


def test_an_evaluation_is_the_log_density_and_its_gradient(chains, x64):
    rng = np.random.default_rng(1)
    normal = whitening(chains, rng.normal(size=3), np.eye(3) + 0.3 * rng.normal(size=(3, 3)))
    white = rng.normal(size=(2 * CHAINS, 3))
    found = chains._evaluate(normal, white)
    by_hands = jax.jit(jax.vmap(jax.value_and_grad(by_hand(chains.problem, normal))))
    expected = by_hands(white)
    np.testing.assert_allclose(found.logdensity, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.score, expected[1], rtol=1e-8, atol=1e-10)


def test_a_trajectory_is_that_of_blackjax_and_metropolis_decides(chains, x64):
    blackjax = pytest.importorskip("blackjax")
    rng = np.random.default_rng(2)
    normal = whitening(chains, np.array([1.0, -1.0, -0.7]), 0.2 * np.eye(3))
    chains.normal, chains._log_step = normal, np.log(0.3)
    start = rng.normal(size=(CHAINS, 3))
    chains._begin(start)
    noise = chains._noise(False)
    chains._noise = lambda adapt: noise
    chains._advance(1)
    logdensity = by_hand(chains.problem, normal)
    gradient = jax.jit(jax.value_and_grad(logdensity))
    outer = METHODS["hmc"].even_kick / 4
    coefficients = [outer, 0.5, 1 - 2 * outer, 0.5, outer]
    integrator = blackjax.mcmc.integrators.generate_euclidean_integrator(coefficients)
    step = jax.jit(integrator(logdensity, lambda p: 0.5 * jnp.sum(p**2)))
    num_pairs = int(np.ceil(noise.length[0] / 0.6))
    accepted = []
    for chain in range(CHAINS):
        value, score = gradient(start[chain])
        state = blackjax.mcmc.integrators.IntegratorState(
            start[chain], noise.momentum[0, chain], value, score
        )
        end = state
        for _ in range(num_pairs):
            end = step(end, noise.length[0] / num_pairs)
        energy = lambda s: 0.5 * np.sum(s.momentum**2) - s.logdensity
        accept = noise.uniform[0, chain] < np.exp(energy(state) - energy(end))
        expected = end.position if accept else start[chain]
        np.testing.assert_allclose(chains._state.current.white[chain], expected, atol=1e-8)
        accepted.append(bool(accept))
    assert any(accepted)
    del chains._noise


@pytest.mark.parametrize("method", list(METHODS))
def test_chains_that_start_in_the_posterior_stay_in_it(method):
    """Exactness: with large steps and many refusals, the law does not drift."""

    def model():
        numpyro.sample("x", dist.Gamma(3.0, 1.0))
        numpyro.sample("y", dist.Gumbel(0.0, 1.0))

    problem = read(model, ())
    rng = np.random.default_rng(3)
    runs = Ensemble(rng, problem, 2000, method=method)
    runs.normal = whitening(runs, np.array([1.0, 0.5]), np.diag([0.6, 1.3]))
    runs._log_step = np.log(1.1)
    x, y = rng.gamma(3.0, 1.0, 2000), rng.gumbel(0.0, 1.0, 2000)
    runs._begin(runs.normal.pull(np.stack([np.log(x), y], 1)))
    found = runs.sample(6)
    assert 0.3 < found.acceptance.mean() < 0.97
    last = found.draws[-1]
    for values, mean, sd in (
        (np.exp(last[:, 0]), 3.0, 3**0.5),
        (last[:, 1], np.euler_gamma, np.pi / 6**0.5),
    ):
        assert abs(values.mean() - mean) < 4 * sd / 2000**0.5
        assert abs(np.log(values.std() / sd)) < 4 / 2000**0.5 * 1.5


def test_noise_is_never_used_twice(chains, x64):
    """The momentum of the trajectory that a chunk leaves under way is a new one."""
    chains.normal = whitening(chains, np.zeros(3), 0.1 * np.eye(3))
    chains._log_step = np.log(0.1)
    chains._begin(np.zeros((CHAINS, 3)))
    chains._advance(chains._chunk)
    assert chains._noise(False).momentum.shape[0] == chains._chunk + 1


def test_one_program_for_all_data_of_a_shape(x64):
    for seed in (0, 1):
        problem = read(regression, data(seed))
        runs = Ensemble(np.random.default_rng(seed), problem, CHAINS)
        runs.fit()
        runs.disperse()
        runs.warm_up(max_windows=1)
        runs.sample(3)
        if seed == 0:
            compiled = ensemble.advance._cache_size()
    assert ensemble.advance._cache_size() == compiled


def test_a_model_that_is_nowhere_finite_is_an_error():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("never", jnp.log(-(x**2)))

    problem = read(model, ())
    with pytest.raises(ValueError, match="starting points"):
        Ensemble(np.random.default_rng(0), problem, CHAINS).fit()


def test_a_support_that_depends_on_another_site_is_handled(x64):
    """b is uniform between 0 and 1 - a: the moments of a uniform on a triangle."""

    def model():
        a = numpyro.sample("a", dist.Beta(1.0, 2.0))
        numpyro.sample("b", dist.ImproperUniform(constraints.interval(0.0, 1.0 - a), (), ()))
        numpyro.factor("density", -jnp.log1p(-a))

    problem = read(model, ())
    runs = Ensemble(np.random.default_rng(0), problem, CHAINS)
    runs.fit()
    runs.disperse()
    runs.warm_up()
    points = runs.sample(256).draws.reshape(-1, 2)
    values = jax.vmap(problem.constrain)(points)
    stderr = 18**-0.5 / (len(points) / 8) ** 0.5
    np.testing.assert_allclose(np.mean(values["b"]), 1 / 3, atol=4 * stderr)
    np.testing.assert_allclose(np.mean(values["a"]), 1 / 3, atol=4 * stderr)
