"""`infer`: what it compiles and imports, and models with subsampled plates."""

import subprocess
import sys

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoMultivariateNormal

import relbo
from relbo import _infer

NUM, SIZE, NOISE = 200, 2, 0.7
RNG = np.random.default_rng(1)
X = np.stack([np.ones(NUM), RNG.normal(1.0, 1.0, NUM)], 1).astype(np.float32)
Y = (X @ [0.5, -1.0] + NOISE * RNG.normal(size=NUM)).astype(np.float32)
PRECISION = np.eye(SIZE) / 4.0 + X.T @ X / NOISE**2
MEAN, SD = (
    np.linalg.solve(PRECISION, X.T @ Y / NOISE**2),
    np.diag(np.linalg.inv(PRECISION)) ** 0.5,
)


def regression(x, y, batch_size=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([SIZE]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ weights, NOISE), obs=y[rows])


def assert_exact(posterior):
    check, draws = posterior.check(), posterior.draws["weights"]
    assert check.trustworthy, check
    error = check.ess**-0.5
    np.testing.assert_array_less(np.abs(draws.mean(0) - MEAN) / SD, 4 * error)
    np.testing.assert_array_less(np.abs(np.log(draws.std(0) / SD)), 3 * error)


def test_two_programs_serve_a_run_and_its_check(compilations):
    """Operations of JAX outside of a program are compiled one by one, in every process."""
    x, y = X[:37], Y[:37]  # shapes that no other test has
    posterior = relbo.infer(0, regression, (x, y), num_chains=58, progress=False)
    assert np.isfinite(posterior.check().pareto_k)
    assert str(posterior.summary())
    # The last two make a key of a seed, once in a process.
    names = {name.removeprefix("jit(").removesuffix(")") for name in compilations}
    assert names - {"stage", "_threefry_seed"} == {"advance", "constrained_rows"}


def test_infer_does_not_import_what_trains_a_guide():
    code = "import sys, relbo; relbo.infer; assert not {'optax', 'arviz'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_subsampled_regression_is_right(monkeypatch):
    """By chains on all the data, and by proposals of the guide if chains cost too much."""
    guide = relbo.AutoRefined(regression, base=AutoMultivariateNormal, num_steps=0)
    for limit, words in ((300.0, "adjusted chains (hmc)"), (0.0, "independent Metropolis")):
        monkeypatch.setattr(_infer, "DEFAULT_CHAIN_SECONDS", limit)
        posterior = relbo.infer(0, regression, (X, Y, 20), guide=guide, progress=False)
        assert_exact(posterior)
        assert "trained on minibatches of the plates ['rows']" in posterior.procedure
        assert words in str(posterior.check())


@pytest.mark.slow
def test_a_refined_guide_is_trained_by_itself():
    posterior = relbo.infer(0, regression, (X, Y, 20), progress=False)
    assert_exact(posterior)
    assert "trained on minibatches" in posterior.procedure


@pytest.mark.slow
def test_local_latent_values_are_all_drawn():
    def groups(y, batch_size):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        with numpyro.plate("groups", len(y), subsample_size=batch_size) as some:
            effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
            numpyro.sample("y", dist.Normal(effect, 1.0), obs=y[some])

    y = Y[:24]
    posterior = relbo.infer(0, groups, (y, 6), progress=False)
    check = posterior.check()
    assert check.trustworthy, check
    assert posterior.draws["effect"].shape == (4000, 24)
    precision = 1 / 9 + 24 / 2
    expected = 0.5 * (y + y.sum() / 2 / precision)
    errors = posterior.draws["effect"].std(0) / check.ess**0.5
    np.testing.assert_array_less(
        np.abs(posterior.draws["effect"].mean(0) - expected), 5 * errors
    )


def test_a_minibatch_in_the_arguments_is_refused_before_training():
    def given_batch(x, y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([SIZE]).to_event(1))
        with numpyro.plate("rows", NUM, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(x @ weights, NOISE), obs=y)

    with pytest.raises(ValueError, match=r"^args: the plates \['rows'\]"):
        relbo.infer(0, given_batch, (X[:64], Y[:64]), progress=False)


def test_a_log_density_in_place_of_a_model_is_named():
    def logdensity(position):
        return -0.5 * position**2

    for args in ((), (0.0,)):
        with pytest.raises((TypeError, ValueError), match="model_from_logdensity"):
            relbo.infer(0, logdensity, args, progress=False)


def test_missing_arguments_of_a_model_are_named():
    def model(x, y, *, scale):
        numpyro.sample("z", dist.Normal(0.0, scale))

    with pytest.raises(TypeError, match=r"its arguments \['y', 'scale'\] are missing"):
        relbo.infer(0, model, (1.0,), progress=False)
