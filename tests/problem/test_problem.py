"""Reading models as problems: log densities, sites, refusals and front ends."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from scipy import stats

import relbo
from relbo.problem import FRONT_ENDS, Problem, read
from relbo.problem.call import Call, checked_call, split_call


def regression(x, y=None, *, prior_sd=2.0):
    slope = numpyro.sample("slope", dist.Normal(0.0, prior_sd).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("variance", scale**2)
    numpyro.sample("y", dist.Normal(x @ slope, scale), obs=y)


X = np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])
Y = np.array([0.3, -0.2, 1.0])


@pytest.fixture
def problem(x64):
    return read(regression, (X, Y))


def test_log_density_is_prior_times_likelihood_times_jacobian(problem):
    position = {"slope": np.array([0.3, -0.7]), "scale": np.log(0.6)}
    expected = (
        stats.norm(0.0, 2.0).logpdf(position["slope"]).sum()
        + stats.halfnorm(scale=1.0).logpdf(0.6)
        + stats.norm(X @ position["slope"], 0.6).logpdf(Y).sum()
        + np.log(0.6)
    )
    vector = problem.ravel(position)
    np.testing.assert_allclose(problem.logdensity(vector), expected, rtol=1e-10)
    np.testing.assert_allclose(problem.logdensity_at(position), expected, rtol=1e-10)


def test_sites_and_coordinates_have_names(problem):
    assert [tuple(site) for site in problem.sites] == [("scale", ()), ("slope", (2,))]
    assert problem.coordinate_names() == ["scale", "slope[0]", "slope[1]"]
    assert problem.size == 3


def test_constrain_and_unconstrain_are_inverse(problem):
    vector = jnp.array([-1.2, 0.3, -0.7])
    values = problem.constrain(vector)
    np.testing.assert_allclose(values["scale"], np.exp(-1.2))
    np.testing.assert_allclose(values["variance"], np.exp(-2.4))
    np.testing.assert_allclose(problem.unconstrain(values), vector, rtol=1e-10)


def test_data_and_predictions_come_from_the_model(problem):
    assert list(problem.observed()) == ["y"]
    draws = {"slope": jnp.zeros((4, 2)), "scale": jnp.ones(4)}
    likelihood = problem.log_likelihood(draws)["y"]
    np.testing.assert_allclose(likelihood[0], stats.norm(0.0, 1.0).logpdf(Y), rtol=1e-10)
    assert problem.predict(jax.random.key(0), draws)["y"].shape == (4, 3)


def test_factors_in_plates_are_not_data():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 3):
            numpyro.factor("penalty", -(x**2))
            numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    problem = read(model, (jnp.ones(3),))
    assert list(problem.observed()) == ["y"]
    assert list(problem.log_likelihood({"x": jnp.zeros(4)})) == ["y"]
    assert list(problem.predict(jax.random.key(0), {"x": jnp.zeros(4)})) == ["y"]


def test_other_data_of_the_same_shapes_reuse_a_compiled_function(x64):
    evaluate = jax.jit(lambda problem, z: problem.logdensity(z))
    values = [float(evaluate(read(regression, (X, Y + k)), jnp.zeros(3))) for k in (0, 1)]
    assert values[0] != values[1]
    assert evaluate._cache_size() == 1
    evaluate(read(regression, (X, Y), {"prior_sd": 3.0}), jnp.zeros(3))
    assert evaluate._cache_size() == 2


def test_a_model_that_needs_the_values_of_its_arguments_gets_them():
    def model(number, y):
        size = 3 if number.sum() > 2 else 1
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
        numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=y)

    assert read(model, (np.ones(4), 0.5)).size == 3
    assert read(model, (np.ones(1), 0.5)).size == 1


def test_trained_parameters_of_the_model_are_kept_and_others_ignored():
    def model():
        loc = numpyro.param("loc", 0.0)
        numpyro.sample("x", dist.Normal(loc, 1.0))

    problem = read(model, params={"loc": jnp.asarray(2.0), "auto_loc": jnp.zeros(1)})
    assert list(problem.data.params) == ["loc"]
    expected = stats.norm(2.0, 1.0).logpdf(2.5)
    np.testing.assert_allclose(problem.logdensity(jnp.array([2.5])), expected, rtol=1e-5)
    assert list(problem.constrain(jnp.zeros(1))) == ["x"]


def test_a_log_density_over_a_pytree_is_a_problem():
    model = relbo.model_from_logdensity(
        lambda z: -jnp.sum(z["a"] ** 2) - z["b"] ** 2, {"a": jnp.ones(2), "b": jnp.asarray(3.0)}
    )
    problem = read(model)
    assert problem.coordinate_names() == ["a[0]", "a[1]", "b"]
    np.testing.assert_allclose(problem.start, [1.0, 1.0, 3.0])
    np.testing.assert_allclose(problem.logdensity(jnp.array([1.0, 2.0, 3.0])), -14.0)
    assert problem.observed() == {}
    with pytest.raises(ValueError, match="no log likelihood"):
        problem.log_likelihood({})
    with pytest.raises(ValueError, match="args: a log density takes none"):
        read(model, (1.0,))


def test_a_problem_is_read_as_itself(problem):
    assert read(problem) is problem


def discrete():
    numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("x", dist.Normal(0.0, 1.0))


def without_latents():
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=1.0)


def with_parameter():
    loc = numpyro.param("loc", 0.0, constraint=constraints.real)
    numpyro.sample("x", dist.Normal(loc, 1.0))


def subsampled():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 10, subsample_size=4) as index:
        numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.arange(10.0)[index])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (discrete, r"\['z'\] are discrete.*relbo\.collapse"),
        (without_latents, "nothing to infer"),
        (with_parameter, r"parameters \['loc'\] without a prior"),
        (subsampled, r"plates \['rows'\] are subsampled"),
        (3.0, "model: expected a NumPyro program"),
    ],
)
def test_what_cannot_be_inferred_is_refused_by_name(model, message):
    with pytest.raises(ValueError, match=message):
        read(model)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (Y, None, r"args: expected a tuple .* got ndarray; write args=\(y,\)"),
        (3.0, None, "args: expected a tuple .* got float"),
        ("y", None, "args: expected a tuple .* got str"),
        ((X,), Y, "kwargs: expected a dict .* got ndarray"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_arguments_of_the_wrong_kind_are_refused_in_one_line(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        checked_call(args, kwargs)


def test_a_hidden_latent_site_needs_a_value():
    """The density would hold whatever was drawn for it from its prior."""
    hidden = handlers.block(regression, hide=["scale"])
    with pytest.raises(ValueError, match=r"\['scale'\] are hidden by .*substitute"):
        read(hidden, (X, Y))
    fixed = handlers.substitute(regression, data={"scale": jnp.array(0.5)})
    sites = read(handlers.block(fixed, hide=["scale"]), (X, Y)).sites
    assert [site.name for site in sites] == ["slope"]


def test_a_call_is_split_into_arrays_and_hashable_constants():
    call = Call((X, 3, np.int64(4), "name", [np.float32(1.0)]), {"flag": True})
    layout, arrays = split_call(call)
    assert [array.shape for array in arrays] == [(3, 2), ()]
    assert hash(layout) == hash(split_call(call)[0])
    args, kwargs = layout.fill(arrays)
    assert args[1:4] == (3, 4, "name")
    assert kwargs == {"flag": True}
    np.testing.assert_array_equal(args[0], X)
    fixed = layout.with_constants(arrays)
    np.testing.assert_array_equal(fixed.fill(()).args[0], X)


FRONT_END = '''
"""Reads dictionaries {"logp": function, "size": number}."""

import dataclasses
from typing import Any

import jax.numpy as jnp

import relbo
from relbo.problem import AbstractProgram, FrontEnd, Problem, Site


@dataclasses.dataclass(frozen=True)
class DictProgram(AbstractProgram):
    logp: Any
    size: int

    @property
    def model(self):
        return relbo.model_from_logdensity(self.logp, jnp.zeros(self.size))

    @property
    def sites(self):
        return (Site("x", (self.size,)),)

    def logdensity(self, position, data):
        return self.logp(position["x"])

    def constrain(self, position, data):
        return position

    def unconstrain(self, values, data):
        return values


FRONT_END = FrontEnd(
    lambda model: isinstance(model, dict),
    lambda model, args, kwargs, params: Problem(DictProgram(model["logp"], model["size"]), ()),
)
'''


def test_a_new_front_end_is_one_file_and_one_line(tmp_path, monkeypatch):
    path = tmp_path / "dict_front_end.py"
    path.write_text(FRONT_END)
    spec = importlib.util.spec_from_file_location("dict_front_end", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dict_front_end", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr("relbo.problem.front_ends.FRONT_ENDS", [module.FRONT_END, *FRONT_ENDS])
    model = {"logp": lambda x: -0.5 * jnp.sum((x - 3.0) ** 2), "size": 2}
    assert isinstance(read(model), Problem)
    posterior = relbo.infer(0, model, num_draws=1600, progress=False)
    assert posterior.check().trustworthy
    np.testing.assert_allclose(posterior.draws["x"].mean(0), 3.0, atol=0.15)
    np.testing.assert_allclose(posterior.log_evidence, np.log(2 * np.pi), atol=0.05)
