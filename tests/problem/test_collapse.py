"""Discrete sites summed out, against sums written by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import log_density

import relbo
from programs import assert_mean_weight, elbos, fit, prepare

pytestmark = pytest.mark.filterwarnings("ignore")  # funsor's and NumPyro's own


@pytest.fixture(autouse=True)
def _numpyro_promotes():
    with jax.numpy_rank_promotion("allow"):
        yield


STATES, LENGTH = 3, 9
SERIES = jr.randint(jr.key(0), (LENGTH,), 0, STATES)


def hidden_markov(series):
    rows = dist.Dirichlet(jnp.ones((STATES, STATES))).to_event(1)
    transition = numpyro.sample("transition", rows)
    emission = numpyro.sample("emission", rows)

    def step(state, symbol):
        state = numpyro.sample(
            "state", dist.Categorical(transition[state]), infer={"enumerate": "parallel"}
        )
        numpyro.sample("symbol", dist.Categorical(emission[state]), obs=symbol)
        return state, None

    scan(step, 0, series)


def forward_algorithm(transition, emission, series):
    def step(log_alpha, symbol):
        moved = jax.nn.logsumexp(log_alpha[:, None] + jnp.log(transition), axis=0)
        return moved + jnp.log(emission)[:, symbol], None

    start = jnp.where(jnp.arange(STATES) == 0, 0.0, -jnp.inf)
    return jax.nn.logsumexp(jax.lax.scan(step, start, series)[0])


def mixture(data):
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", 3):
        k = numpyro.sample("k", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
        numpyro.sample("x", dist.Normal(jnp.array([-1.0, 1.0])[k], 1.0), obs=data)


def density(model, values, *args):
    # Compiled as one program: operation by operation, each would be compiled on its own.
    return jax.jit(
        lambda values: log_density(numpyro.handlers.seed(model, 0), args, {}, values)[0]
    )(values)


def test_hidden_markov_model_is_the_forward_algorithm():
    keys = jr.split(jr.key(1))
    transition, emission = (jr.dirichlet(key, jnp.ones(STATES), (STATES,)) for key in keys)
    found = density(
        relbo.collapse(hidden_markov), {"transition": transition, "emission": emission}, SERIES
    )
    prior = 2 * STATES * dist.Dirichlet(jnp.ones(STATES)).log_prob(transition[0])
    expected = prior + forward_algorithm(transition, emission, SERIES)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_mixture_in_a_plate():
    data = jnp.array([-0.5, 0.2, 1.5])
    found = density(relbo.collapse(mixture), {"weight": jnp.array(0.3)}, data)
    each = jnp.logaddexp(
        jnp.log(0.7) + dist.Normal(-1.0, 1.0).log_prob(data),
        jnp.log(0.3) + dist.Normal(1.0, 1.0).log_prob(data),
    )
    expected = dist.Beta(2.0, 2.0).log_prob(0.3) + jnp.sum(each)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_weights_of_a_collapsed_program_average_to_its_evidence():
    data = jnp.array([-0.5, 0.2, 1.5])
    model = relbo.collapse(mixture)
    guide = relbo.AutoRefined(model, num_steps=4, init_scale=1.5)
    _, _, params = prepare(model, guide, data)
    grid = jnp.linspace(0.0005, 0.9995, 1000)
    each = jax.vmap(lambda weight: density(model, {"weight": weight}, data))(grid)
    evidence = float(jnp.log(jnp.mean(jnp.exp(each))))
    assert_mean_weight(elbos(model, guide, params, data), evidence)


@pytest.mark.slow
def test_hidden_markov_model_is_refined():
    model = relbo.collapse(hidden_markov)
    guide = relbo.AutoRefined(model, num_steps=2)
    params = fit(model, guide, SERIES, num_iterations=100)
    draws = guide.sample_posterior(jr.key(0), params, SERIES, sample_shape=(3,))
    np.testing.assert_allclose(jnp.sum(draws["transition"], -1), 1.0, rtol=1e-5)
