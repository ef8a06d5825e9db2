"""Simulation-based calibration accepts exact posteriors and rejects wrong ones."""

import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from relbo.evaluate import calibrate, uniform_envelope, uniformity_pvalue
from relbo.evaluate._calibrate import randomised_pits

SIZE = 5
Y = jnp.zeros(SIZE)


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def draws_of(key, y, *, shift=0.0, width=1.0, num_draws=200):
    """Draws from the exact posterior of `model`, or from a wrong one."""
    precision = 1 / 4 + y.size
    noise = width * jr.normal(key, (num_draws,)) + shift
    mean = y.sum() / precision + noise / precision**0.5
    return {"mean": mean, "twice": 2 * mean}


def exact(key, model, args, kwargs):
    return draws_of(key, args[0])


def run(infer_fn, number=150, **options):
    return calibrate(0, model, infer_fn, number, args=(Y,), progress=False, **options)


def test_an_exact_posterior_is_calibrated():
    found = run(exact)
    assert found.is_calibrated
    assert found.names == ["mean", "twice", "log likelihood"]
    assert found.is_trusted is None
    assert "No sign of wrong posteriors in 150 simulations." in str(found)
    assert found.ranks.min() >= 0
    assert np.all(found.ranks <= found.num_draws[:, None])


@pytest.mark.parametrize(
    ("wrong", "defect"),
    [
        ({"width": 0.6}, "too narrow"),
        ({"width": 1.6}, "too wide"),
        ({"shift": 0.6}, "too high"),
        ({"shift": -0.6}, "too low"),
    ],
)
def test_a_wrong_posterior_is_not(wrong, defect):
    found = run(lambda key, model, args, kwargs: draws_of(key, args[0], **wrong))
    assert not found.is_calibrated
    assert "mean" in found.rejected
    assert f"mean (draws {defect})" in found.verdict


def test_draws_of_the_prior_are_rejected_by_the_likelihood_alone():
    def prior(key, model, args, kwargs):
        return {"mean": 2 * jr.normal(key, (200,))}

    assert run(prior).rejected == ["log likelihood"]


def autocorrelated(key, model, args, kwargs):
    """Exact draws, of which 1,000 are worth about ten independent ones."""
    keys = jr.split(key)
    precision = 1 / 4 + args[0].size
    noise = np.asarray(jr.normal(keys[0], (1000,)))
    chain = [np.asarray(jr.normal(keys[1]))]
    for value in noise:
        chain.append(0.98 * chain[-1] + (1 - 0.98**2) ** 0.5 * value)
    return {"mean": args[0].sum() / precision + np.array(chain) / precision**0.5}


def test_autocorrelated_draws_are_thinned():
    found = run(autocorrelated)
    assert found.is_calibrated
    assert 4 < np.median(found.num_draws) < 40


class Judged(dict):
    """Draws with a check, like those of a `Posterior`."""

    def check(self):
        return self

    trustworthy = True


def test_runs_that_the_check_did_not_trust_are_counted_and_can_be_left_out():
    def sometimes(key, model, args, kwargs):
        is_doubted = bool(jr.uniform(key) < 0.4)
        found = Judged(draws_of(key, args[0], shift=2.0 * is_doubted))
        found.trustworthy = not is_doubted
        return found

    found = run(sometimes)
    assert found.is_trusted is not None
    doubted = int(np.sum(~found.is_trusted))
    assert 30 < doubted < 90
    assert not found.is_calibrated
    assert f"check() did not trust {doubted} of 150 runs" in found.verdict
    assert "The ranks of the others can be uniform." in found.verdict
    assert found.trusted_only().is_calibrated
    with pytest.raises(ValueError, match="no runs"):
        run(exact, 2).trusted_only()


def test_quantities_replace_the_sites_and_chains_have_an_axis():
    def chains(key, model, args, kwargs):
        mean = draws_of(key, args[0])["mean"]
        return {"mean": mean.reshape(4, 50), "y": mean}

    found = run(chains, 5, quantities=lambda values: {"pair": jnp.outer(values["mean"], Y[:2])})
    assert found.names == ["pair[0,0]", "pair[0,1]", "log likelihood"]


def test_a_failed_run_is_counted_and_the_first_is_raised():
    calls = []

    def fails_once(key, model, args, kwargs):
        calls.append(key)
        if len(calls) == 3:
            raise RuntimeError("no luck")
        return exact(key, model, args, kwargs)

    found = run(fails_once, 5)
    assert found.failures == {2: "RuntimeError: no luck"}
    assert not found.is_calibrated
    assert "1 runs failed" in found.verdict
    assert len(found.pits) == 4
    calls[:] = [None, None]
    with pytest.raises(RuntimeError, match="no luck"):
        run(fails_once, 5)


def nan(key, model, args, kwargs):
    return {"mean": jnp.full(50, jnp.nan)}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (nan(0, 0, 0, 0), "draws of mean, log likelihood are not numbers"),
        ({"mean": jnp.zeros((50, 3, 2))}, r"'mean' in the shape \[draws, \*\[\]\]"),
        ({"other": jnp.zeros(50)}, "expected draws of some of"),
        (jnp.zeros(50), "expected a Posterior or a dict"),
        ({"mean": jnp.zeros(50), "twice": jnp.zeros(40)}, "same number of draws"),
    ],
)
def test_wrong_results_are_refused(result, message):
    with pytest.raises(ValueError, match=message):
        run(lambda *_: result, 2)


def test_a_second_call_continues(tmp_path):
    calls = []

    def counted(key, model, args, kwargs):
        calls.append(key)
        return exact(key, model, args, kwargs)

    first = run(counted, 4, directory=tmp_path)
    (tmp_path / "simulation-00001.json").unlink()
    again = run(counted, 6, directory=tmp_path)
    assert len(calls) == 4 + 3
    np.testing.assert_array_equal(first.pits, again.pits[:4])
    np.testing.assert_array_equal(again.pits, run(counted, 6).pits)


def test_files_of_another_calibration_are_refused(tmp_path):
    run(exact, 2, directory=tmp_path)
    with pytest.raises(ValueError, match=r"differs in num_ranked: 100 there, 50 here"):
        run(exact, 2, directory=tmp_path, num_ranked=50)
    with pytest.raises(ValueError, match="differs in simulated values"):
        calibrate(0, model, exact, 2, args=(jnp.zeros(4),), directory=tmp_path, progress=False)
    with pytest.raises(ValueError, match="differs in infer_fn"):
        run(nan, 2, directory=tmp_path)
    (tmp_path / "simulation-00001.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        run(exact, 2, directory=tmp_path)
    (tmp_path / "calibration.json").unlink()
    with pytest.raises(ValueError, match=r"calibration.json is missing"):
        run(exact, 2, directory=tmp_path)


def test_a_record_is_small_and_plain(tmp_path):
    run(exact, 2, directory=tmp_path)
    record = json.loads((tmp_path / "simulation-00000.json").read_text())
    assert set(record) == {"pits", "num_draws", "is_trusted", "error"}


def logged(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("log_y", dist.Normal(mean, 1.0), obs=jnp.log(y))


def lagged(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mean + 0.5 * jnp.roll(y, 1), 1.0), obs=y)


@pytest.mark.parametrize(("program", "site"), [(logged, "log_y"), (lagged, "y")])
def test_a_model_that_does_not_observe_its_argument_itself_is_conditioned(program, site):
    seen = []

    def spy(key, model, args, kwargs):
        data, template = args
        seen.append(model)
        np.testing.assert_array_equal(template, jnp.ones(SIZE))
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            model(*args)
        np.testing.assert_array_equal(trace[site]["value"], data[site])
        lags = 0.5 if site == "y" else 0.0
        return draws_of(key, data[site] - lags)

    found = calibrate(0, program, spy, 30, args=(jnp.ones(SIZE),), progress=False)
    assert found.is_calibrated
    assert len(set(map(id, seen))) == 1


def improper(y):
    numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def factored(y):
    numpyro.factor("f", numpyro.sample("mean", dist.Normal()))


def free(y):
    numpyro.sample("y", dist.Normal(numpyro.param("p", 0.0), 1.0), obs=y)


@pytest.mark.parametrize(
    ("program", "args", "message"),
    [
        (improper, (Y,), "cannot be drawn"),
        (factored, (Y,), "factors"),
        (free, (Y,), "without a prior"),
        (model, (None,), "no observed site"),
    ],
)
def test_models_that_cannot_be_simulated_are_refused(program, args, message):
    with pytest.raises(ValueError, match=message):
        calibrate(0, program, exact, 2, args=args, progress=False)


def test_progress_of_the_inference_function_is_off():
    def shows(key, model, args, kwargs, progress=True):
        assert not progress
        return exact(key, model, args, kwargs)

    run(shows, 2)


def test_ties_are_broken_at_random():
    ones = np.ones((9, 400))
    pits = randomised_pits(jr.key(0), ones[0], ones)
    assert uniformity_pvalue(pits) > 0.01


def test_pvalues_are_uniform_and_agree_with_the_envelope():
    rng = np.random.default_rng(0)
    samples = rng.uniform(size=(400, 60))
    pvalues = np.array([uniformity_pvalue(values) for values in samples])
    for level in (0.05, 0.2):
        error = (level * (1 - level) / 400) ** 0.5
        # The statistic is discrete, so that the share may be a little lower.
        assert level - 5 * error < np.mean(pvalues <= level) < level + 4 * error
        points, low, high = uniform_envelope(60, level)
        shares = np.mean(samples[:, :, None] <= points, axis=1)
        is_outside = np.any((shares < low - 1e-9) | (shares > high + 1e-9), axis=1)
        np.testing.assert_array_equal(is_outside, pvalues <= level)


def test_the_plot_shows_every_quantity():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    narrow = run(lambda key, model, args, kwargs: draws_of(key, args[0], width=0.5))
    ax = narrow.plot()
    assert len(ax.lines) == 3
    assert {text.get_text() for text in ax.get_legend().get_texts()} == set(narrow.rejected)
    assert run(exact, 20).plot(ax) is ax
    plt.close("all")


def test_one_program_serves_all_simulations(compilations):
    run(exact, 2)
    compilations.clear()
    calibrate(7, model, exact, 3, args=(Y,), progress=False)
    repeated = [name for name in set(compilations) if compilations.count(name) > 2]
    assert not repeated
