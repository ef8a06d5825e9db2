"""Posteriors for new data from the draws of old ones."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.sampling import tempering, updating
from relbo.sampling.moving import effective_share, resampled
from relbo.sampling.posterior import Posterior

PRIOR_SD = 2.0
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])
LONGER = np.append(Y, [2.4, 1.9])


def conjugate(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def closed_form(y):
    precision = PRIOR_SD**-2 + len(y)
    covariance = PRIOR_SD**2 * np.ones((len(y), len(y))) + np.eye(len(y))
    log_evidence = dist.MultivariateNormal(jnp.zeros(len(y)), covariance).log_prob(y)
    return np.sum(y) / precision, precision**-0.5, float(log_evidence)


def assert_right(posterior, y, old_y):
    (mean, sd, log_evidence), check = closed_form(y), posterior.check()
    assert check.trustworthy, check
    draws = posterior.draws["mean"]
    assert abs(draws.mean() - mean) < 4 * sd / check.ess**0.5
    assert abs(np.log(draws.std() / sd)) < 4 / (2 * check.ess) ** 0.5
    increment = log_evidence - closed_form(old_y)[2]
    error = abs(posterior.log_evidence_increment - increment)
    assert error < 4 * posterior.increment.stderr + 1e-3
    error = abs(posterior.log_evidence - log_evidence)
    assert error < 4 * posterior.log_evidence_stderr + 1e-3


@pytest.fixture(scope="module")
def posterior():
    return relbo.infer(0, conjugate, (Y,), num_draws=1600, progress=False)


def test_draws_are_moved_and_weighed(posterior):
    found = posterior.update((LONGER,), progress=False)
    assert found.draws["mean"].shape == (1600,)
    assert "repeated in proportion to their importance weights" in found.procedure
    assert "Metropolis-adjusted" not in str(found.check())
    assert_right(found, LONGER, Y)


def test_an_update_of_an_update_goes_on_from_there(posterior):
    once = posterior.update((LONGER,), progress=False)
    third = np.append(LONGER, [0.1, 0.9])
    twice = once.update((third,), progress=False)
    assert_right(twice, third, LONGER)
    assert twice.increment.total_stderr > twice.increment.stderr
    more = twice.extend(400, progress=False)
    assert more.num_draws == 2000
    assert more.check().trustworthy


def test_draws_are_annealed_if_weights_are_not_enough(posterior, monkeypatch, tmp_path):
    monkeypatch.setattr(updating, "MIN_SHARE", 1.1)
    monkeypatch.setattr(tempering, "STAGE_SHARE", 0.99)
    found = posterior.update((LONGER,), progress=False)
    assert "annealed in" in found.procedure
    assert "acceptance_rate" in found.sample_stats
    assert_right(found, LONGER, Y)
    loaded = Posterior.load(found.save(tmp_path / "run"))
    assert loaded.increment == found.increment
    assert loaded.log_evidence_stderr == found.log_evidence_stderr


@pytest.mark.parametrize("is_annealed", [False, True])
def test_an_update_compiles_few_programs(posterior, monkeypatch, compilations, is_annealed):
    monkeypatch.setattr(updating, "MIN_SHARE", 1.1 if is_annealed else 0.0)
    jax.clear_caches()
    compilations.clear()
    posterior.update((LONGER,), progress=False)
    names = {name.removeprefix("jit(").removesuffix(")") for name in compilations}
    chains = {"_step", "advance"} if is_annealed else set()
    assert names == {"unconstrained_rows", "evaluate_white", "constrained_rows"} | chains


def test_posteriors_without_tuning_are_updated(posterior):
    plain = posterior.replaced(tuning=None, log_weights=None)
    found = plain.update((LONGER,), progress=False)
    assert found.tuning is None
    assert found.log_evidence is None
    assert abs(found.draws["mean"].mean() - closed_form(LONGER)[0]) < 0.1


def test_another_model_of_the_same_sites_is_an_update(posterior):
    def wider(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    found = posterior.update((Y,), model=wider, progress=False)
    assert abs(found.draws["mean"].mean() - Y.sum() / (5 + 0.01)) < 0.1


def test_updates_are_a_function_of_the_posterior_and_the_key(posterior):
    update = lambda **options: posterior.update((LONGER,), progress=False, **options)
    np.testing.assert_array_equal(update().draws["mean"], update().draws["mean"])
    assert not np.array_equal(update().draws["mean"], update(key=1).draws["mean"])


def test_collapsed_weights_are_refused(posterior):
    def elsewhere(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
        numpyro.factor("wall", jnp.where(mean > 30.0, 0.0, -jnp.inf))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"^args: the new posterior is too different .* 0%"):
        posterior.update((Y,), model=elsewhere, progress=False)


def test_a_path_that_does_not_end_is_refused(posterior, monkeypatch):
    monkeypatch.setattr(updating, "MIN_SHARE", 1.1)
    monkeypatch.setattr(tempering, "STAGE_SHARE", 0.9999)
    monkeypatch.setattr(tempering, "MAX_STAGES", 1)
    with pytest.raises(ValueError, match="annealed steps came only"):
        posterior.update((LONGER,), progress=False)


def test_other_sites_and_missing_models_are_refused(posterior, tmp_path):
    def other(y):
        mean = numpyro.sample("mean", dist.Normal().expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)

    with pytest.raises(ValueError, match=r"^args: .* sites mean\[\], got mean\[2\]"):
        posterior.update((Y,), model=other, progress=False)
    loaded = Posterior.load(posterior.save(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"^update: a loaded posterior has no model"):
        loaded.update((LONGER,))


def test_an_update_of_bad_draws_is_not_trusted(posterior):
    apart = (
        posterior.chains["mean"] + np.linspace(-5, 5, len(posterior.chains["mean"]))[:, None]
    )
    lp = posterior.sample_stats | {"lp": -0.5 * (apart / 5.0) ** 2}
    bad = posterior.replaced(chains={"mean": apart}, sample_stats=lp, tuning=None)
    try:
        found = bad.update((Y,), progress=False)
    except ValueError:
        return
    assert "was not to be trusted" in " ".join(found.notes)
    assert not found.check().trustworthy


def test_resampling_is_in_proportion_and_in_order():
    rng = np.random.default_rng(0)
    log_weights = np.log(np.array([0.1, 0.4, 0.0, 0.5]) + 1e-300)
    shares = np.mean(
        [np.bincount(resampled(rng, log_weights), minlength=4) for _ in range(500)], 0
    )
    np.testing.assert_allclose(shares / 4, [0.1, 0.4, 0.0, 0.5], atol=0.02)
    assert np.all(np.diff(resampled(rng, rng.normal(size=100))) >= 0)


def test_effective_shares():
    assert effective_share(np.full(10, -5.0)) == pytest.approx(1.0)
    assert effective_share(np.array([0.0, -np.inf, np.nan, -np.inf])) == pytest.approx(0.25)
    assert effective_share(np.full(4, -np.inf)) == 0.0
