"""More draws of the same chains, and chains that start from another posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.sampling.findings import Finding
from relbo.sampling.posterior import Posterior

PRIOR_SD = 2.0
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])


def conjugate(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def closed_form(y):
    precision = PRIOR_SD**-2 + len(y)
    return np.sum(y) / precision, precision**-0.5


def assert_right(posterior, y):
    (mean, sd), worth = closed_form(y), posterior.check().ess
    draws = posterior.draws["mean"]
    assert abs(draws.mean() - mean) < 4 * sd / worth**0.5
    assert abs(np.log(draws.std() / sd)) < 4 / (2 * worth) ** 0.5


@pytest.fixture(scope="module")
def posterior():
    return relbo.infer(0, conjugate, (Y,), num_draws=800, progress=False)


def test_extending_goes_on_with_the_same_chains(posterior):
    more = posterior.extend(1600, progress=False)
    assert more.num_draws == 2400
    assert more.draws["mean"].shape == (2400,)
    length = posterior.chains["mean"].shape[1]
    np.testing.assert_array_equal(more.chains["mean"][:, :length], posterior.chains["mean"])
    assert {values.shape for values in more.sample_stats.values()} == {
        more.chains["mean"].shape
    }
    assert more.log_evidence == posterior.log_evidence
    assert more.tuning.normal is posterior.tuning.normal
    assert more.tuning.log_step == pytest.approx(posterior.tuning.log_step)
    assert more.check().trustworthy
    assert_right(more, Y)


def test_chains_start_where_they_ended(posterior):
    ends = posterior.problem.unconstrain({"mean": posterior.chains["mean"][:, -1]})
    np.testing.assert_allclose(posterior.tuning.ends[:, 0], np.ravel(ends), rtol=1e-5)


def test_extending_is_a_function_of_the_posterior_and_the_key(posterior):
    one, again = (posterior.extend(100, progress=False) for _ in range(2))
    other = posterior.extend(100, key=3, progress=False)
    np.testing.assert_array_equal(one.draws["mean"], again.draws["mean"])
    assert not np.array_equal(one.draws["mean"], other.draws["mean"])
    # The noise of the next extension is another one.
    further = one.extend(100, progress=False).chains["mean"]
    new = one.chains["mean"].shape[1] - posterior.chains["mean"].shape[1]
    assert not np.array_equal(further[:, -new:], one.chains["mean"][:, -new:])


def test_extending_compiles_no_sampler(posterior, compilations):
    posterior.extend(160, progress=False)
    assert not [name for name in compilations if "advance" in name]


def test_what_was_noticed_before_is_not_forgotten(posterior):
    noticed = posterior.replaced(findings=(Finding("Something is wrong."),))
    more = noticed.extend(100, progress=False)
    assert "Something is wrong." in more.notes
    assert not more.check().trustworthy


def test_a_saved_posterior_goes_on_if_it_is_loaded_with_its_model(posterior, tmp_path):
    path = posterior.save(tmp_path / "run")
    loaded = Posterior.load(path, conjugate, (Y,))
    np.testing.assert_array_equal(
        loaded.extend(100, progress=False).draws["mean"],
        posterior.extend(100, progress=False).draws["mean"],
    )
    assert loaded.predict(0)["y"].shape == (800, 5)
    with pytest.raises(ValueError, match=r"^extend: a loaded posterior has no model; load it"):
        Posterior.load(path).extend(100)


def test_posteriors_without_chains_to_continue_are_refused(posterior):
    with pytest.raises(ValueError, match=r"^extend: the posterior does not say how"):
        posterior.replaced(tuning=None).extend(100)
    with pytest.raises(ValueError, match=r"^num_draws"):
        posterior.extend(0)


def test_separate_modes_do_not_go_on():
    far_apart = lambda z: jnp.logaddexp(-0.5 * (z - 20.0) ** 2, -0.5 * (z + 20.0) ** 2)
    model = relbo.model_from_logdensity(far_apart, jnp.zeros(()))
    found = relbo.infer(0, model, num_draws=400, progress=False)
    assert "separate modes" in " ".join(found.notes)
    with pytest.raises(ValueError, match=r"run relbo\.infer with more num_draws"):
        found.extend(100)


@pytest.mark.parametrize("has_tuning", [True, False])
def test_chains_start_from_another_posterior(posterior, has_tuning):
    start = posterior if has_tuning else posterior.replaced(tuning=None)
    y = np.append(Y, [1.0, 2.0, 1.5])
    found = relbo.infer(1, conjugate, (y,), start=start, num_draws=800, progress=False)
    assert_right(found, y)
    assert "started from draws of another posterior" in found.procedure
    assert found.check().trustworthy
    assert found.check().evidence_is_known


def test_starts_that_do_not_fit_are_refused(posterior, wrong_types):
    def other(y):
        slope = numpyro.sample("slope", dist.Normal())
        numpyro.sample("y", dist.Normal(slope, 1.0), obs=y)

    def wider(y):
        mean = numpyro.sample("mean", dist.Normal().expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)

    for model, reason in ((other, r"no draws of the sites \['slope'\]"), (wider, "sites")):
        with pytest.raises(ValueError, match=f"^start: .*{reason}"):
            relbo.infer(0, model, (Y,), start=posterior, progress=False)
    with pytest.raises(ValueError, match=r"^start: expected a Posterior, got dict"):
        relbo.infer(0, conjugate, (Y,), start={}, progress=False)
    guide = relbo.AutoRefined(conjugate)
    with pytest.raises(ValueError, match=r"^start: expected a guide or a posterior"):
        relbo.infer(0, conjugate, (Y,), start=posterior, guide=guide, progress=False)


def test_double_precision_goes_on_in_double_precision(posterior):
    with jax.enable_x64(True):
        double = relbo.infer(0, conjugate, (Y,), num_draws=400, progress=False)
    assert double.extend(100, progress=False).chains["mean"].dtype == np.float64
    assert posterior.extend(100, progress=False).chains["mean"].dtype == np.float32
