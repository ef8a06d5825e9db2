"""PyMC models in `infer`, compared with exact posteriors and with PyMC itself.

Importing PyMC's JAX backend changes settings of the whole process: `make test-pymc` runs these
tests in a process of their own.
"""

import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pymc", reason="make test-pymc installs PyMC")

import pymc as pm
from pymc_cases import COUNTS, EXACT, X, correlated, regression, schools

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

import relbo
from relbo.problem import pymc_functions, read

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # PyMC and ArviZ warn of many short chains, and of the log level.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FAST = {"mode": "FAST_COMPILE"}
"""Makes PyMC compile its own functions faster."""


def infer(model, num_draws=1600):
    return relbo.infer(0, model, num_draws=num_draws, progress=False)


def assert_close(posterior, name, mean, sd):
    """Compares within five standard errors, on the scale of the posterior."""
    error = posterior.check().ess ** -0.5
    draws = posterior.draws[name]
    assert draws.shape[1:] == np.shape(mean)
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean) / sd, 5 * error)
    np.testing.assert_array_less(np.abs(np.log(draws.std(0) / sd)), 5 * error)


@pytest.mark.parametrize("case", EXACT)
def test_posterior_is_exact(case):
    model, expected = case()
    posterior = infer(model)
    assert posterior.check().trustworthy, posterior.check()
    assert set(posterior.draws) == {variable.name for variable in model.unobserved_RVs}
    for name, moments in expected.items():
        assert_close(posterior, name, *moments)


@pytest.mark.parametrize("case", [schools, pytest.param(correlated, marks=pytest.mark.slow)])
def test_posterior_is_that_of_pymc(case):
    model = case()
    posterior = infer(model)
    assert posterior.check().trustworthy, posterior.check()
    with model:
        theirs = pm.sample(
            1000, tune=1000, chains=2, cores=1, random_seed=1, progressbar=False
        )["posterior"]
    names = [name for name in theirs.data_vars if "corr" not in name]
    assert set(theirs.data_vars) == set(posterior.draws)
    for name in names:
        values = np.asarray(theirs[name]).reshape(2000, *posterior.draws[name].shape[1:])
        # PyMC's draws have errors too: at least 300 of them are independent.
        error = np.hypot(posterior.check().ess ** -0.5, 300**-0.5)
        distance = np.abs(posterior.draws[name].mean(0) - values.mean(0)) / values.std(0)
        np.testing.assert_array_less(distance, 5 * error)


@pytest.mark.parametrize("case", [*EXACT, schools, correlated])
def test_log_density_is_that_of_pymc(case, x64):
    """At a random point, with its gradient; and `unconstrain` undoes `constrain`."""
    made = case()
    model = made[0] if isinstance(made, tuple) else made
    problem = read(model)
    vector = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=problem.size))
    point = {
        model.rvs_to_values[model[name]].name: np.asarray(value)
        for name, value in problem.unravel(vector).items()
    }
    value, score = jax.value_and_grad(problem.logdensity)(vector)
    np.testing.assert_allclose(value, model.compile_logp(**FAST)(point), rtol=1e-9)
    np.testing.assert_allclose(score, model.compile_dlogp(**FAST)(point), rtol=1e-6, atol=1e-9)
    values = problem.constrain(vector)
    np.testing.assert_allclose(problem.unconstrain(values), vector, rtol=1e-6, atol=1e-9)


def test_a_density_without_a_form_in_jax_is_called_on_the_host(monkeypatch, x64):
    def refuse(*_):
        raise NotImplementedError

    model, vector = schools(), jnp.linspace(-1.0, 1.0, 10)
    evaluate = lambda: jax.value_and_grad(read(model).logdensity)(vector)
    expected = evaluate()
    monkeypatch.setattr(pymc_functions, "graph_in_jax", refuse)
    for one, other in zip(evaluate(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert "pure_callback" in str(jax.make_jaxpr(read(model).logdensity)(vector))


@pytest.fixture(scope="module")
def fitted():
    model, _ = regression()
    return model, infer(model, num_draws=400)


def test_results_have_the_coords_and_dims_of_the_model(fitted):
    data = fitted[1].to_arviz()
    weights = data["posterior"]["weights"]
    assert weights.dims == ("chain", "draw", "term")
    assert list(weights.coords["term"].values) == ["intercept", "slope"]
    assert data["constant_data"]["x"].dims == ("row", "term")


def test_log_likelihood_is_that_of_pymc_and_compares_models(fitted):
    model, posterior = fitted
    data = posterior.to_arviz(log_likelihood=True)
    ours = np.asarray(data["log_likelihood"]["y"])
    with model:
        theirs = pm.compute_log_likelihood(
            posterior.to_arviz(), progressbar=False, compile_kwargs=FAST
        )
    theirs = np.asarray(theirs["log_likelihood"]["y"])
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    loo = az.loo(data)
    assert np.isfinite(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)
    table = az.compare({"one": data, "same": data})
    assert set(table.index) == {"one", "same"}


def test_predictions_are_those_of_pymc(fitted):
    model, posterior = fitted
    ours = posterior.to_arviz(posterior_predictive=True)["posterior_predictive"]["y"]
    assert ours.dims == ("chain", "draw", "row")
    with model:
        theirs = pm.sample_posterior_predictive(
            posterior.to_arviz(), progressbar=False, random_seed=0, compile_kwargs=FAST
        )["posterior_predictive"]["y"]
    expected = posterior.draws["mean"].mean(0)
    for drawn in (ours, theirs):
        drawn = np.asarray(drawn).reshape(-1, 20)
        error = drawn.std(0) / len(drawn) ** 0.5 + posterior.draws["mean"].std(0) / 10
        np.testing.assert_array_less(np.abs(drawn.mean(0) - expected), 5 * error)


def test_new_inputs_are_predicted_by_pymc(fitted):
    model, posterior = fitted
    with model:
        try:
            pm.set_data({"x": X[:3] + 10.0}, coords={"row": np.arange(3)})
            drawn = pm.sample_posterior_predictive(
                posterior.to_arviz(),
                var_names=["mean"],
                predictions=True,
                progressbar=False,
                compile_kwargs=FAST,
            )
        finally:
            pm.set_data({"x": X}, coords={"row": np.arange(20)})
    mean = np.asarray(drawn["predictions"]["mean"]).mean((0, 1))
    expected = (X[:3] + 10.0) @ posterior.draws["weights"].mean(0)
    np.testing.assert_allclose(mean, expected, rtol=1e-3)


def test_a_second_run_compiles_nothing_and_new_data_count(compilations):
    with pm.Model() as model:
        count = pm.Data("count", COUNTS)
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Poisson("seen", rate, observed=count)
    first = infer(model, 400).draws["rate"].mean()
    del compilations[:]
    infer(model, 400)
    assert compilations == []
    with model:
        pm.set_data({"count": 10 * COUNTS})
    assert infer(model, 400).draws["rate"].mean() > 5 * first
    with model:
        pm.Potential("shift", -10.0 * rate)
    assert infer(model, 400).draws["rate"].mean() < 5 * first


def test_fit_trains_a_guide(fitted):
    model, posterior = fitted
    trained = relbo.fit(0, model, num_iterations=200, progress=False)
    draws = trained.guide.sample_posterior(1, trained.params, sample_shape=(400,))
    sd = posterior.draws["weights"].std(0)
    distance = draws["weights"].mean(0) - posterior.draws["weights"].mean(0)
    np.testing.assert_array_less(np.abs(distance) / sd, 0.5)
    started = relbo.sample(
        2, model, guide=trained.guide, params=trained.params, num_draws=400, progress=False
    )
    assert_close(started, "weights", posterior.draws["weights"].mean(0), sd)


def with_discrete():
    pm.Bernoulli("z", 0.5)
    pm.Normal("x", 0.0, 1.0)


def with_minibatches():
    mean = pm.Normal("mean", 0.0, 1.0)
    batch = pm.Minibatch(X[:, 1], batch_size=5)
    pm.Normal("y", mean, 1.0, observed=batch, total_size=20)


def without_free():
    pm.Normal("y", 0.0, 1.0, observed=1.0)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (with_discrete, r"free variables \['z'\] are discrete.*pm\.Mixture.*pm\.sample"),
        (without_free, "nothing to infer"),
        (with_minibatches, r"minibatches \(pm\.Minibatch\).*observe the whole array"),
    ],
)
def test_what_cannot_be_inferred_is_refused_with_advice(write, message):
    with pm.Model() as model:
        write()
    with pytest.raises(ValueError, match=message):
        infer(model)


def test_arguments_are_refused():
    with pytest.raises(ValueError, match=r"holds its data.*pm\.set_data"):
        relbo.infer(0, regression()[0], (X,), progress=False)


IMPORT = """
import os, jax
with jax.enable_x64(True):
    import relbo.problem.pymc_model
assert jax.numpy.zeros(()).dtype == "float32", "float64"
assert jax.device_count() == 1, jax.device_count()
assert os.environ.get("XLA_FLAGS") == {flags!r}
"""


@pytest.mark.parametrize("flags", [None, "--xla_cpu_enable_fast_math=false"])
def test_the_import_leaves_the_process_as_it_was(flags):
    environment = {**os.environ, "JAX_ENABLE_X64": "0"}
    environment.pop("XLA_FLAGS", None)
    if flags is not None:
        environment["XLA_FLAGS"] = flags
    code = IMPORT.format(flags=flags)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
