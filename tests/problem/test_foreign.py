"""Densities that are computed outside of JAX: by a compiled library, and by NumPy."""

import ctypes
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import relbo
from relbo.problem import ForeignDensity, read

SHAPES, COUNTS = np.array([9.0, 3.0]), np.array([4.0, 1.0])

SOURCE = """
#include <math.h>

/* Two gamma densities of rates, as a function of the logarithms of the rates. */
double log_density_gradient(const double *x, double *gradient) {
    const double shape[2] = {9.0, 3.0}, count[2] = {4.0, 1.0};
    double value = 0.0;
    for (int i = 0; i < 2; i++) {
        value += shape[i] * x[i] - count[i] * exp(x[i]);
        gradient[i] = shape[i] - count[i] * exp(x[i]);
    }
    return value;
}
"""


class NumPyRates:
    """Two rates with gamma densities."""

    num_calls = 0

    def param_unc_num(self):
        return 2

    def param_names(self):
        return ["rate.1", "rate.2"]

    def param_constrain(self, theta_unc):
        return np.exp(theta_unc)

    def log_density_gradient(self, theta_unc):
        self.num_calls += 1
        rates = np.exp(theta_unc)
        return SHAPES @ theta_unc - COUNTS @ rates, SHAPES - COUNTS * rates


class CompiledRates(NumPyRates):
    """The same from a library in C."""

    def __init__(self, path):
        self.function = ctypes.CDLL(str(path)).log_density_gradient
        self.function.restype = ctypes.c_double
        self.function.argtypes = [np.ctypeslib.ndpointer(float)] * 2

    def log_density_gradient(self, theta_unc):
        gradient = np.empty(2)
        return self.function(theta_unc, gradient), gradient


@pytest.fixture(params=["numpy", "compiled"])
def rates(request, tmp_path):
    if request.param == "numpy":
        return NumPyRates()
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "rates.c").write_text(SOURCE)
    library = tmp_path / "rates.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", library, tmp_path / "rates.c", "-lm"]
    subprocess.run(command, check=True)
    return CompiledRates(library)


def test_posterior_and_evidence_are_exact(rates):
    assert isinstance(rates, ForeignDensity)
    posterior = relbo.infer(0, rates, num_draws=1600, progress=False)
    check, exact = posterior.check(), stats.gamma(SHAPES, scale=1 / COUNTS)
    assert check.trustworthy, check
    draws, error = posterior.draws["rate"], check.ess**-0.5
    np.testing.assert_array_less(np.abs(draws.mean(0) - exact.mean()) / exact.std(), 5 * error)
    np.testing.assert_array_less(np.abs(np.log(draws.std(0) / exact.std())), 5 * error)
    log_evidence = np.sum(gammaln(SHAPES) - SHAPES * np.log(COUNTS))
    assert abs(posterior.log_evidence - log_evidence) < 0.05


def test_a_point_is_evaluated_once_for_its_value_and_score(x64):
    rates = NumPyRates()
    problem = read(rates)
    points = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    values, scores = jax.jit(jax.vmap(jax.value_and_grad(problem.logdensity)))(points)
    assert rates.num_calls == 5
    for point, value, score in zip(points, values, scores, strict=True):
        expected = rates.log_density_gradient(np.asarray(point))
        np.testing.assert_allclose(value, expected[0])
        np.testing.assert_allclose(score, expected[1])


class Simplex:
    """A Dirichlet density with fewer unconstrained than constrained values."""

    concentration = np.array([2.0, 3.0, 5.0])

    def param_unc_num(self):
        return 2

    def param_unc_names(self):
        return ["p.1", "p.2"]

    def param_names(self):
        return ["p.1", "p.2", "p.3"]

    def param_constrain(self, theta_unc):
        weights = np.exp([*theta_unc, 0.0])
        return weights / weights.sum()

    def log_density_gradient(self, theta_unc):
        if theta_unc[0] > 3.0:
            raise RuntimeError("off the support")
        p, total = self.param_constrain(theta_unc), self.concentration.sum()
        value = self.concentration @ np.log(p)
        return value, (self.concentration - total * p)[:2]


def test_a_simplex_has_names_for_its_unconstrained_values():
    posterior = relbo.infer(0, Simplex(), num_draws=1600, progress=False)
    exact = stats.dirichlet(Simplex.concentration)
    draws, error = posterior.draws["p"], posterior.check().ess ** -0.5
    sd = np.sqrt(exact.var())
    np.testing.assert_array_less(np.abs(draws.mean(0) - exact.mean()) / sd, 5 * error)


def test_an_error_means_a_density_of_zero():
    value, score = jax.value_and_grad(read(Simplex()).logdensity)(jnp.array([4.0, 0.0]))
    assert value == -jnp.inf
    np.testing.assert_array_equal(score, 0.0)


class Matrix(NumPyRates):
    """Entries of a matrix by columns, as Stan has them, after a number."""

    def param_unc_num(self):
        return 7

    def param_names(self):
        return ["a", *(f"m.{row}.{column}" for column in (1, 2, 3) for row in (1, 2))]

    def param_constrain(self, theta_unc):
        return 10 * theta_unc

    def log_density_gradient(self, theta_unc):
        return float(np.arange(7) @ theta_unc), np.arange(7.0)


def test_arrays_have_their_shapes_and_orders(x64):
    problem = read(Matrix())
    assert [tuple(site) for site in problem.sites] == [("a", ()), ("m", (2, 3))]
    vector = jnp.arange(7.0) + 1
    values = problem.constrain(vector)
    np.testing.assert_allclose(values["m"], 10 * np.array([[2, 3, 4], [5, 6, 7]]))
    # By rows the entries of the matrix are 1, 3, 5, 2, 4, 6 of the density's own vector.
    np.testing.assert_allclose(jax.grad(problem.logdensity)(vector), [0, 1, 3, 5, 2, 4, 6])


class Misnamed(Simplex):
    param_unc_names = Simplex.param_names


class Ragged(Matrix):
    def param_names(self):
        return [f"m.{index}" for index in (1, 2, 3, 4, 5, 6, 8)]


@pytest.mark.parametrize(
    ("model", "message"),
    [(Misnamed(), "3 names for 2 unconstrained values"), (Ragged(), "'m' do not fill")],
)
def test_wrong_names_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        read(model)


class WithHessian(NumPyRates):
    def log_density_hessian(self, theta_unc):
        value, gradient = self.log_density_gradient(theta_unc)
        return value, gradient, -np.diag(COUNTS * np.exp(theta_unc))


def trained_draws(rates, mode):
    refinement = relbo.Refinement(num_steps=2, mode=mode)
    guide = relbo.AutoRefined(read(rates).program.model, refinement=refinement)
    trained = relbo.fit(0, rates, guide=guide, num_iterations=100, progress=False)
    return guide.sample_posterior(1, trained.params, sample_shape=(400,))["rate"]


@pytest.mark.parametrize(
    ("rates", "mode"),
    [
        pytest.param(NumPyRates(), "fast", id="fast"),
        pytest.param(WithHessian(), "full", id="full", marks=pytest.mark.slow),
    ],
)
def test_a_guide_is_trained(rates, mode):
    draws, exact = trained_draws(rates, mode), stats.gamma(SHAPES, scale=1 / COUNTS)
    np.testing.assert_array_less(np.abs(draws.mean(0) - exact.mean()) / exact.std(), 0.5)


def test_missing_second_derivatives_are_named():
    score = jax.grad(read(NumPyRates()).logdensity)
    with pytest.raises(Exception, match=r"no second derivatives .*infer without a guide"):
        jax.jacfwd(score)(jnp.zeros(2))
    score = jax.grad(read(WithHessian()).logdensity)
    np.testing.assert_allclose(jax.jacrev(score)(jnp.zeros(2)), -np.diag(COUNTS))
