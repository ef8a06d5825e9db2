"""Posteriors: what they hold, what they say of themselves, that they come back from disk."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.sampling._sample import default_num_chains
from relbo.sampling.posterior import Posterior

PRIOR_SD, NOISE_SD = 2.0, 1.0
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])


def conjugate(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    numpyro.deterministic("double", 2 * mean)
    numpyro.sample("y", dist.Normal(mean, NOISE_SD), obs=y)


def closed_form(y):
    precision = PRIOR_SD**-2 + len(y) * NOISE_SD**-2
    covariance = PRIOR_SD**2 * np.ones((len(y), len(y))) + NOISE_SD**2 * np.eye(len(y))
    log_evidence = dist.MultivariateNormal(jnp.zeros(len(y)), covariance).log_prob(y)
    return np.sum(y) / precision, precision**-0.5, float(log_evidence)


@pytest.fixture(scope="module")
def posterior():
    return relbo.infer(jr.key(0), conjugate, (Y,), num_draws=1600, progress=False)


def test_infer_is_right_on_a_conjugate_model(posterior):
    mean, sd, log_evidence = closed_form(Y)
    draws = posterior.draws
    worth = posterior.check().ess
    assert draws["mean"].shape == (1600,)
    assert abs(draws["mean"].mean() - mean) < 4 * sd / worth**0.5
    assert abs(np.log(draws["mean"].std() / sd)) < 4 / (2 * worth) ** 0.5
    np.testing.assert_allclose(draws["double"], 2 * draws["mean"], rtol=1e-6)
    error = abs(posterior.log_evidence - log_evidence)
    assert error < 4 * posterior.log_evidence_stderr + 1e-3


def test_the_same_key_gives_the_same_draws_and_compiles_nothing(posterior, compilations):
    again = relbo.infer(jr.key(0), conjugate, (Y,), num_draws=1600, progress=False)
    np.testing.assert_array_equal(again.draws["mean"], posterior.draws["mean"])
    other = relbo.infer(jr.key(1), conjugate, (Y + 1.0,), num_draws=1600, progress=False)
    assert abs(other.draws["mean"].mean() - closed_form(Y + 1.0)[0]) < 0.1
    assert compilations == []
    jax.jit(lambda x: x + 1)(1)
    assert compilations != []


def test_what_is_good_is_trusted(posterior):
    check = posterior.check()
    assert check.trustworthy
    assert check.bad_chains == []
    assert check.rhat < 1.01
    assert check.pareto_k < 0.7
    assert "Trust it" in str(check)
    assert "chains (hmc) started from a fitted normal" in str(check)


def test_the_summary_is_that_of_the_draws(posterior):
    summary = posterior.summary()
    assert set(summary.names) == {"mean", "double"}
    row = summary.names.index("mean")
    np.testing.assert_allclose(summary.columns["mean"][row], posterior.draws["mean"].mean())
    assert "5%" in str(summary)


def test_the_summary_of_some_sites(posterior):
    assert posterior.summary(["double"]).names == ["double"]
    with pytest.raises(ValueError, match=r"sites: expected some of .*, got \['tau'\]"):
        posterior.summary(["tau"])


def test_save_and_load(posterior, tmp_path):
    path = posterior.save(tmp_path / "found")
    loaded = Posterior.load(path)
    np.testing.assert_array_equal(loaded.draws["mean"], posterior.draws["mean"])
    assert loaded.log_evidence == posterior.log_evidence
    assert str(loaded.check()) == str(posterior.check())
    with pytest.raises(ValueError, match="need the model"):
        loaded.to_arviz(log_likelihood=True)


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK\x03\x04 cut off"])
def test_a_file_that_is_none_of_ours_is_refused(content, tmp_path):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a posterior"):
        Posterior.load(path)


@pytest.mark.filterwarnings("ignore")  # of ArviZ's own loo
def test_arviz_has_all_groups_and_loo_works(posterior):
    arviz = pytest.importorskip("arviz")
    data = posterior.to_arviz(log_likelihood=True, posterior_predictive=True)
    assert data["posterior"]["mean"].shape == posterior.chains["mean"].shape
    assert data["log_likelihood"]["y"].shape[-1] == len(Y)
    assert data["posterior_predictive"]["y"].shape[-1] == len(Y)
    np.testing.assert_allclose(data["observed_data"]["y"], Y, rtol=1e-6)
    loo = arviz.loo(data)
    assert np.isfinite(float(loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd))
    # The predictive of a new observation is normal with both variances.
    mean, sd, _ = closed_form(Y)
    predicted = np.asarray(data["posterior_predictive"]["y"])
    total = (sd**2 + NOISE_SD**2) ** 0.5
    assert abs(predicted.mean() - mean) < 0.15
    assert abs(predicted.std() - total) < 0.1


def made_up(chains, **changes):
    shape = chains.shape[:2]
    stats = {"lp": -0.5 * chains**2, "acceptance_rate": np.full(shape, 0.8)}
    options = {
        "num_draws": chains.size,
        "sample_stats": stats,
        "num_superchains": 8,
        "step_size": 0.5,
    }
    return Posterior({"x": chains}, **{**options, **changes})


def test_superchains_that_remember_their_start_are_noticed():
    chains = np.random.default_rng(0).normal(size=(64, 25))
    chains[:8] += 3.0
    check = made_up(chains).check()
    assert not check.trustworthy
    assert check.worst_site == "x"
    assert "not converged" in str(check)


def test_a_stuck_chain_is_marked_and_left_out_on_request():
    chains = np.random.default_rng(1).normal(size=(64, 25))
    chains[3] = 50.0
    posterior = made_up(chains)
    assert np.flatnonzero(posterior.bad_chains).tolist() == [3]
    assert not posterior.check().trustworthy
    rest = posterior.without_bad_chains()
    assert rest.chains["x"].shape == (63, 25)
    assert rest.check().bad_chains == []
    assert abs(rest.draws["x"].mean()) < 0.2


def test_a_chain_that_starts_nowhere_does_not_spoil_the_rest():
    """One superchain begins where the density is zero: the others go on."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("edge", jnp.where(x > 8.0, jnp.nan, 0.0))

    from relbo.problem import read
    from relbo.sampling.ensemble import Ensemble

    runs = Ensemble(np.random.default_rng(0), read(model), 64)
    runs.fit()
    points = np.random.default_rng(1).normal(size=(runs.num_superchains, 1))
    points[0] = 100.0
    runs.disperse(points)
    runs.warm_up()
    draws = runs.sample(32).draws
    assert np.all(np.isfinite(draws[:, 8:]))
    assert abs(draws[:, 8:].mean()) < 0.2
    assert abs(np.log(draws[:, 8:].std())) < 0.2


def test_the_chains_divide_the_draws_where_they_can():
    assert default_num_chains(4000, 10) == 80
    assert default_num_chains(6400, 10) == 64
    assert default_num_chains(1009, 10) == 64
    assert default_num_chains(4000, 5000) == 32


def test_any_number_of_draws_comes_out():
    posterior = relbo.sample(
        jr.key(2), conjugate, (Y,), num_draws=101, num_chains=64, progress=False
    )
    assert posterior.draws["mean"].shape == (101,)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_draws": 0}, "num_draws"),
        ({"num_chains": 3}, "num_chains"),
        ({"method": "gibbs"}, "method"),
    ],
)
def test_bad_arguments_are_named(options, name):
    with pytest.raises(ValueError, match=name):
        relbo.sample(jr.key(0), conjugate, (Y,), progress=False, **options)


def test_time_is_kept():
    posterior = relbo.infer(
        jr.key(3), conjugate, (Y,), num_draws=1600, seconds=0.0, progress=False
    )
    assert posterior.num_draws >= 4 * 64


def test_a_log_density_is_inferred_from_where_it_starts():
    start = {"a": jnp.array([50.0, -50.0])}
    model = relbo.model_from_logdensity(
        lambda z: -0.5 * jnp.sum((z["a"] - jnp.array([40.0, -40.0])) ** 2), start
    )
    posterior = relbo.infer(jr.key(4), model, num_draws=1600, progress=False)
    np.testing.assert_allclose(posterior.draws["a"].mean(0), [40.0, -40.0], atol=0.15)
    np.testing.assert_allclose(posterior.log_evidence, np.log(2 * np.pi), atol=0.05)


def test_two_modes_are_found_and_weighed():
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        parts = jnp.stack([dist.Normal(m, 0.1).log_prob(x) for m in (-1.5, 1.5)])
        numpyro.factor("mixture", jax.nn.logsumexp(parts))

    posterior = relbo.infer(jr.key(5), model, num_draws=1600, progress=False)
    check = posterior.check()
    assert check.trustworthy
    assert "2 separate modes" in str(check)
    assert abs(np.mean(posterior.draws["x"] > 0) - 0.5) < 0.01
    np.testing.assert_allclose(posterior.log_evidence, np.log(2.0), atol=0.05)
