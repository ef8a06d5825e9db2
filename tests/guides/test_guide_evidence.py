"""The ELBO of refined guides against the exact evidence."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import autoguide, init_to_value

import relbo
from programs import DATA, NUM, conjugate, conjugate_evidence, elbos, fit, prepare
from targets import mean_and_error

# Correlated columns, which a mean-field guide cannot represent.
DESIGN = jr.normal(jr.key(4), (15, 3)) @ jnp.array([[1.0, 0.8, 0.0], [0, 0.6, 0.0], [0, 0, 1]])
RESPONSE = DESIGN @ jnp.array([1.0, -0.5, 0.3]) + 0.5 * jr.normal(jr.key(5), (15,))


def linear():
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("rows", 15):
        numpyro.sample("y", dist.Normal(DESIGN @ slopes, 0.5), obs=RESPONSE)


def linear_evidence():
    covariance = 0.25 * jnp.eye(15) + 4.0 * DESIGN @ DESIGN.T
    return float(dist.MultivariateNormal(jnp.zeros(15), covariance).log_prob(RESPONSE))


def known():
    return conjugate(DATA)


PROGRAMS = {"normal": (known, conjugate_evidence), "linear": (linear, linear_evidence)}
SAMPLERS = {
    "default": (None, None),
    "langevin": (relbo.SGLD(0.02), None),
    "gradient": (relbo.SGD(0.02), relbo.ChangeOfVariablesAccount()),
    "centre": (relbo.SGD(0.02), relbo.GaussianAccount()),
}


@pytest.fixture(scope="module")
def base_elbos():
    """Returns the ELBO of the base alone after the same training, once per program."""
    found = {}

    def get(name):
        if name not in found:
            program, _ = PROGRAMS[name]
            guide = autoguide.AutoDiagonalNormal(program)
            params = fit(program, guide, num_iterations=3000)
            found[name] = mean_and_error(elbos(program, guide, params, num_draws=10_000))
        return found[name]

    return get


@pytest.mark.parametrize(("limit", "valid"), [(3, None), (2, False)])
def test_an_estimated_determinant_is_not_a_bound(limit, valid):
    account = relbo.ChangeOfVariablesAccount(max_exact_dimension=limit)
    refinement = relbo.Refinement(relbo.SGD(0.02), account, num_steps=1)
    guide = relbo.AutoRefined(linear, refinement=refinement)
    prepare(linear, guide)
    assert guide.bound.valid is valid
    assert ("3 values" in guide.bound.reason) == (valid is False)


def trained(name, refinement, num_iterations=3000):
    program, evidence = PROGRAMS[name]
    guide = relbo.AutoRefined(program, refinement=refinement)
    params = fit(program, guide, num_iterations=num_iterations)
    assert guide.bound.valid is not False
    mean, error = mean_and_error(elbos(program, guide, params, num_draws=10_000))
    assert mean < evidence() + 4 * error
    return mean, error


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_elbo_is_between_that_of_the_base_and_the_evidence(name, sampler, base_elbos):
    # A sampler needs longer than its base to converge: on "normal", where the base is exact,
    # it is 0.005 nats below after 3000 iterations.
    refinement = relbo.Refinement(*SAMPLERS[sampler], num_steps=2)
    mean, error = trained(name, refinement, num_iterations=10_000)
    base, base_error = base_elbos(name)
    assert mean > base - 4 * np.hypot(error, base_error)


@pytest.mark.slow
def test_steps_close_the_gap_of_a_poor_base(base_elbos):
    mean, error = trained("linear", relbo.Refinement(num_steps=4))
    base, base_error = base_elbos("linear")
    assert mean - base > 0.3 * (linear_evidence() - base) + 4 * np.hypot(error, base_error)


def test_steps_reach_two_modes():
    """A normal covers one mode or straddles both; the evidence is 1."""

    def program():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("modes", dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.4, 0.6])),
            dist.Normal(jnp.array([-1.5, 1.5]), 0.5),
        ).log_prob(z))  # fmt: skip

    start = {"init_loc_fn": init_to_value(values={"z": 0.0}), "init_scale": 1.5}
    base = autoguide.AutoDiagonalNormal(program, **start)
    below, _ = mean_and_error(elbos(program, base, fit(program, base)))
    guide = relbo.AutoRefined(program, num_steps=4, **start)
    mean, error = mean_and_error(elbos(program, guide, fit(program, guide)))
    assert below + 0.1 < mean < 4 * error


def test_refinement_without_steps_is_its_base():
    guide = relbo.AutoRefined(conjugate, num_steps=0)
    _, _, params = prepare(conjugate, guide, DATA)
    ours, error = mean_and_error(elbos(conjugate, guide, params, DATA))
    theirs, their_error = mean_and_error(elbos(conjugate, guide.base, params, DATA))
    assert abs(ours - theirs) < 4 * np.hypot(error, their_error)


def test_default_guide_reaches_the_evidence():
    guide = relbo.AutoRefined(conjugate)
    params = fit(conjugate, guide, DATA, num_iterations=1000)
    assert guide.refinement.num_steps == 8
    assert guide.bound.valid is True
    mean, error = mean_and_error(elbos(conjugate, guide, params, DATA))
    assert conjugate_evidence() - 0.2 < mean < conjugate_evidence() + 4 * error
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(4000,))["mu"]
    variance = 1 / (NUM + 1 / 9)
    assert abs(jnp.mean(draws) - variance * jnp.sum(DATA)) < 5 * (variance / 4000) ** 0.5 + 0.02
    assert jnp.std(draws) == pytest.approx(variance**0.5, rel=0.15)


def test_failed_walks_have_weight_zero():
    """The partial log q of a failed walk could exceed the evidence."""

    def walled():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(z > 0.0, jnp.nan, 0.0) * z)

    start = init_to_value(values={"z": -0.1})
    guide = relbo.AutoRefined(walled, num_steps=4, init_loc_fn=start)
    _, _, params = prepare(walled, guide)
    values = elbos(walled, guide, params, num_draws=200)
    # A draw of the base beyond the wall gives NaN, because the model does.
    assert jnp.any(values == -jnp.inf)
    assert jnp.any(jnp.isfinite(values))
    draws = guide.sample_posterior(jr.key(0), params, sample_shape=(200,))["z"]
    assert jnp.all(jnp.isfinite(draws))
