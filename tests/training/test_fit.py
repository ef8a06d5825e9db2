"""Training reaches what is known in closed form, and says so if it does not."""

import contextlib
import math
import time

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from normal_mean import (
    BACK_OFF,
    DESCENT,
    PLAIN,
    REFINED,
    TOO_FAST,
    UNTIL_THE_END,
    Y,
    closed_form,
    fit,
    fit_minibatches,
    model,
    own_guide,
)
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import relbo
from relbo import Starts, Stopping
from relbo.training import Result
from relbo.training.data import Call, RowStream, laid_out
from relbo.training.optimiser import FlatOptimiser, rescaled, slowed
from relbo.training.stopping import ChunkLosses, SeedProgress, StoppingRule


@pytest.mark.parametrize(
    "guide",
    [pytest.param(PLAIN, marks=pytest.mark.slow), REFINED, own_guide],
    ids=["plain", "refined", "function"],
)
def test_reaches_the_evidence_and_the_posterior(guide):
    trained = fit(guide, num_iterations=6000, stopping=Stopping(patience=200))
    mean, sd, evidence = closed_form()
    assert trained.result is Result.CONVERGED
    assert trained.num_iterations == len(trained.losses) < 6000
    assert "converged" in trained.message
    assert "Fit(" in repr(trained)
    # The last learning rate leaves the parameters a few hundredths from the optimum.
    assert abs(trained.final_loss + evidence) < 4 * trained.final_stderr + 0.01
    if guide is own_guide:
        found = trained.params["loc"], trained.params["scale"]
    else:
        draws = trained.guide.sample_posterior(1, trained.params, sample_shape=(4000,))["mean"]
        found = draws.mean(), draws.std()
    assert abs(found[0] - mean) < 0.1 * sd
    assert abs(np.log(found[1] / sd)) < 0.1


@pytest.mark.slow
def test_default_options_reach_the_evidence():
    trained = relbo.fit(0, model, (Y,), num_iterations=100, progress=False)
    assert isinstance(trained.guide, relbo.AutoRefined)
    assert trained.result is Result.FINISHED
    assert abs(trained.final_loss + closed_form()[2]) < 4 * trained.final_stderr + 0.05


def test_equals_svi_with_the_optimiser_of_the_user():
    trained = fit(optimiser=DESCENT, num_iterations=150, stopping=UNTIL_THE_END)
    svi = SVI(model, own_guide, DESCENT, Trace_ELBO(16))
    state = svi.init(jr.split(jr.key(0), 1)[0], Y)
    state, losses = jax.lax.scan(lambda s, _: svi.update(s, Y), state, length=150)
    np.testing.assert_allclose(trained.losses, losses, rtol=1e-4)
    for name, value in svi.get_params(state).items():
        np.testing.assert_allclose(trained.params[name], value, rtol=1e-4)


def test_minibatches():
    trained = fit_minibatches(num_iterations=2000)
    mean, sd, evidence = closed_form()
    assert abs(trained.params["loc"] - mean) < 0.2 * sd
    assert abs(np.log(trained.params["scale"] / sd)) < 0.2
    assert abs(trained.final_loss + evidence) < 4 * trained.final_stderr + 0.1


def test_an_epoch_contains_every_row_once():
    data = laid_out(Call((np.arange(9.0), np.zeros(3)), {}), 4)
    assert data.layout.is_cut == (True, False)
    with contextlib.closing(RowStream(data, jr.split(jr.key(0), 2), None)) as stream:
        rows = stream.rows(0)
        (sent,) = stream.chunk(0, 100)
    np.testing.assert_array_equal(sent, rows)
    for seed in range(2):
        epochs = [np.concatenate(rows[seed, i : i + 2]) for i in (0, 2, 4)]
        assert all(len(set(seen)) == 8 for seen in epochs)
        assert len({tuple(seen) for seen in epochs}) == 3


def test_a_model_may_use_the_values_of_its_arguments():
    def peeking(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0 if y.sum() > 0 else 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([8]).to_event(1), obs=y)

    guide = lambda y: own_guide(y)
    trained = relbo.fit(0, peeking, (Y,), guide=guide, num_iterations=300, progress=False)
    np.testing.assert_allclose(trained.losses, fit().losses, rtol=1e-4)
    with pytest.raises(ValueError, match="batch_size: the model uses the values"):
        relbo.fit(0, peeking, (Y,), guide=guide, batch_size=4, progress=False)


@pytest.fixture(scope="module")
def two_seeds():
    """Two seeds whose learning rate is too high until they have backed off."""
    return fit(
        optimiser=TOO_FAST, starts=Starts(num_seeds=2), stopping=BACK_OFF, num_iterations=1500
    )


def test_all_seeds_are_returned(two_seeds):
    assert two_seeds.seed_params["loc"].shape == (2,)
    assert two_seeds.seed_params["loc"][0] != two_seeds.seed_params["loc"][1]
    assert two_seeds.seed_losses.shape == (2, 1500)
    assert len(two_seeds.seed_results) == 2


def test_the_best_seed_has_the_lowest_loss(two_seeds):
    best = two_seeds.best_seed
    assert best == np.argmin(two_seeds.seed_losses[:, -1000:].mean(axis=1))
    assert f"seed {best} of 2" in two_seeds.message
    assert two_seeds.params["loc"] == two_seeds.seed_params["loc"][best]
    np.testing.assert_array_equal(two_seeds.losses, two_seeds.seed_losses[best])
    assert two_seeds.final_loss == pytest.approx(two_seeds.losses[-1000:].mean())


def test_backing_off_lowers_the_rate_until_it_works(two_seeds):
    assert two_seeds.result is Result.FINISHED
    assert "the learning rate was halved" in two_seeds.message
    mean, sd, evidence = closed_form()
    assert abs(two_seeds.params["loc"] - mean) < sd
    assert np.mean(two_seeds.losses[-100:]) < -evidence + 1.0


def test_without_backing_off_the_same_run_diverges(two_seeds):
    trained = fit(optimiser=TOO_FAST, starts=Starts(num_seeds=2), stopping=UNTIL_THE_END)
    assert trained.result is Result.DIVERGED


def test_one_seed_has_a_leading_axis_of_one():
    trained = fit(num_iterations=100)
    assert trained.seed_params["loc"].shape == (1,)
    assert trained.seed_params["loc"][0] == trained.params["loc"]


def test_early_stopping_can_be_switched_off():
    options = {"optimiser": DESCENT, "num_iterations": 1050}
    early = fit(stopping=Stopping(patience=100), **options)
    full = fit(stopping=UNTIL_THE_END, **options)
    assert early.result is Result.CONVERGED
    assert early.num_iterations < 1000
    assert full.result is Result.FINISHED
    assert full.num_iterations == len(full.losses) == 1050
    np.testing.assert_array_equal(full.losses[: early.num_iterations], early.losses)


def test_an_exploding_loss_goes_back_to_the_best_state():
    trained = fit(optimiser=DESCENT, stopping=UNTIL_THE_END, num_iterations=2000)
    assert trained.result is Result.DIVERGED
    assert abs(trained.params["loc"] - closed_form()[0]) < 0.3
    assert abs(trained.final_loss + closed_form()[2]) < 0.5


def test_a_run_that_ends_while_it_goes_back_has_the_best_state():
    failed = fit(optimiser=DESCENT, stopping=UNTIL_THE_END, num_iterations=2000)
    backing_off = Stopping(early=False, on_failure="back off")
    number = 100 * math.ceil(failed.num_iterations / 100)
    trained = fit(optimiser=DESCENT, stopping=backing_off, num_iterations=number)
    assert trained.result is Result.FINISHED
    np.testing.assert_allclose(trained.params["loc"], failed.params["loc"])
    assert trained.final_loss == failed.final_loss


def test_the_default_rate_falls_before_the_fit_stops():
    rule = StoppingRule(Stopping(patience=100), is_default_optimiser=True)
    seed, flat, factors = SeedProgress(), np.zeros(100), []
    for chunk in range(1, 7):
        factors.append(rule.factor(seed))
        rule.apply(seed, flat, -1, 100 * chunk)
    assert seed.result is Result.CONVERGED
    assert seed.ended_at == 600
    cosine = 0.5 * (1 + np.cos(np.pi * np.array([1, 3, 5, 7]) / 8))
    np.testing.assert_allclose(factors, [1, 1, *cosine], rtol=1e-6)


def test_the_default_rate_falls_to_zero_before_the_last_iteration():
    rule = StoppingRule(Stopping(), is_default_optimiser=True)
    seed, factors = SeedProgress(), []
    for chunk in range(1, 7):
        factors.append(rule.factor(seed))
        rule.apply(seed, np.zeros(100), -1, 100 * chunk, chunks_left=6.0 - chunk)
    assert seed.result is None
    assert factors[:2] == [1, 1]
    assert 0 < factors[-1] < 0.05


def test_a_run_that_slows_down_cools_sooner_and_is_not_heated_again():
    rule = StoppingRule(Stopping(), is_default_optimiser=True)
    seed, factors = SeedProgress(), []
    for chunk, left in enumerate([6.0, 3.9, 2.0, 1.3, 0.4], 1):
        factors.append(rule.factor(seed))
        rule.apply(seed, np.zeros(100), -1, 100 * chunk, chunks_left=left)
    assert factors[:2] == [1, 1]
    assert np.all(np.diff(factors[1:]) < 0)
    assert seed.result is Result.OUT_OF_TIME
    assert seed.ended_at == 500


def test_after_a_warm_start_gains_within_the_noise_are_not_waited_for():
    rng, chunks = np.random.default_rng(0), {}
    for is_warm in (False, True):
        options = {"is_default_optimiser": True, "is_warm": is_warm}
        rule, seed = StoppingRule(Stopping(patience=300), **options), SeedProgress()
        while not seed.cooling and len(seed.chunks) < 50:
            slowly_falling = rng.normal(-0.01 * len(seed.chunks), 1.0, 100)
            rule.apply(seed, slowly_falling, -1, 100 * len(seed.chunks))
        chunks[is_warm] = len(seed.chunks)
    assert chunks[True] == 6
    assert chunks[False] > 6


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_warm_run_that_leaves_its_optimum_goes_back_to_it(is_warm):
    rule = StoppingRule(Stopping(), is_default_optimiser=True, is_warm=is_warm)
    seed, noise = SeedProgress(), np.random.default_rng(0).normal(0.0, 0.1, 100)
    rule.apply(seed, noise, -1, 100)
    rule.apply(seed, noise + 0.2, -1, 200)
    assert not seed.restore
    rule.apply(seed, noise + 0.4, -1, 300)
    assert seed.restore == is_warm
    assert rule.factor(seed) == (0.5 if is_warm else 1.0)
    assert seed.result is None


def test_nan_stops_with_the_last_good_state():
    options = {
        "optimiser": optax.sgd(lambda count: jnp.where(count == 137, jnp.nan, 0.02)),
        "stopping": UNTIL_THE_END,
    }
    trained, before = fit(**options), fit(num_iterations=137, **options)
    assert trained.result is Result.DIVERGED
    assert trained.num_iterations == 137
    assert "diverged at iteration 137" in trained.message
    assert "Likely cause: the learning rate is too high" in trained.message
    for name in before.params:
        np.testing.assert_array_equal(trained.params[name], before.params[name])


@pytest.fixture
def bad_y():
    bad = Y.copy()
    bad[3] = np.nan
    return bad


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_nan_in_the_data_is_named(bad_y):
    with pytest.raises(ValueError, match=r"args\[0\] of the model's arguments contains NaN"):
        fit(AutoNormal(model), bad_y)
    trained = fit(own_guide, bad_y)
    assert trained.result is Result.DIVERGED
    assert trained.num_iterations == 0
    assert "args[0] of the model's arguments contains NaN" in trained.message
    assert all(np.all(np.isfinite(value)) for value in trained.params.values())


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_backing_off_ends_when_it_does_not_help(bad_y):
    trained = fit(y=bad_y, stopping=BACK_OFF, num_iterations=1500)
    assert trained.result is Result.DIVERGED
    assert "halved 10 times" in trained.message
    assert np.isfinite(trained.params["loc"])
    short = fit(y=bad_y, stopping=BACK_OFF, num_iterations=200)
    assert short.result is Result.DIVERGED


def test_one_bad_seed_does_not_spoil_the_others():
    def trap(y):
        loc = numpyro.param("loc", lambda key: jr.normal(key))
        numpyro.sample("mean", dist.Normal(loc, jnp.where(loc > 0, 1.0, jnp.nan)))

    trained = fit(trap, starts=Starts(num_seeds=4), num_iterations=100)
    bad = [result is Result.DIVERGED for result in trained.seed_results]
    assert 0 < sum(bad) < 4
    assert not bad[trained.best_seed]
    assert trained.result is Result.FINISHED
    assert "diverged: [" in trained.message
    assert np.isfinite(trained.params["loc"])


def regression(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1e7).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(weights[0] + weights[1] * x, 1e4), obs=y)


def test_warm_start_finds_locations_of_a_hundred_thousand(x64):
    x = np.linspace(10.0, 20.0, 12)
    y = 1e5 + 3e4 * x + 1e4 * np.sin(37.0 * x)
    design = np.stack([np.ones(12), x], axis=1)
    precision = design.T @ design / 1e8 + np.eye(2) / 1e14
    mean = np.linalg.solve(precision, design.T @ y / 1e8)
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    guide = AutoMultivariateNormal(regression)
    trained = relbo.fit(0, regression, (x, y), guide=guide, num_iterations=400, progress=False)
    tril = np.asarray(trained.params["auto_scale_tril"])
    np.testing.assert_allclose(trained.params["auto_loc"], mean, atol=0.1 * sd.min())
    np.testing.assert_allclose(np.linalg.norm(tril, axis=1), sd, rtol=0.1)


@pytest.mark.parametrize("guide", [PLAIN, REFINED], ids=["plain", "refined"])
def test_a_further_fit_compiles_nothing(guide, compilations):
    first = fit(guide)

    def counted(x):
        return x + 1

    jax.jit(counted)(1)
    assert any("counted" in name for name in compilations)
    # The second fit is the first that has supports to compare: it compiles that one function,
    # unless an earlier test has.
    compilations.clear()
    fit(guide, Y + 2.0, key=2)
    assert all("_supports" in name for name in compilations)
    compilations.clear()
    second = fit(guide, Y + 1.0, key=1)
    assert compilations == []
    assert second.losses[-1] != first.losses[-1]
    assert abs(second.final_loss + closed_form(Y + 1.0)[2]) < 0.1


@pytest.mark.parametrize("optimiser", [None, optax.adam(0.01)], ids=["default", "given"])
def test_a_chunk_is_compiled_once(optimiser, compilations):
    model = lambda: numpyro.sample("z", dist.Normal(0.0, 1.0))
    relbo.fit(0, model, optimiser=optimiser, num_iterations=300, progress=False)
    # A name appears twice: lowered, then compiled.
    assert sum("chunk" in name for name in compilations) == 2


def test_each_fit_keeps_its_own_data():
    fits = [fit(REFINED, y, num_iterations=100) for y in (Y, Y + 5.0)]
    again = fit(fits[0].guide, Y + 5.0, num_iterations=100)
    draw = lambda one, *data: one.guide.sample_posterior(jr.key(0), fits[0].params, *data)
    assert draw(fits[0])["mean"] == draw(fits[0], Y)["mean"]
    assert draw(fits[1])["mean"] == draw(again)["mean"] == draw(fits[0], Y + 5.0)["mean"]
    assert draw(fits[0])["mean"] < draw(fits[1])["mean"]
    # A minibatch is not the data set.
    part = fit_minibatches(guide=fits[0].guide, num_iterations=100)
    assert part.guide is REFINED


def bounded(y):
    upper = numpyro.sample("upper", dist.Uniform(jnp.max(y), jnp.max(y) + 1.0))
    numpyro.sample("y", dist.Normal(upper, 1.0).expand([8]).to_event(1), obs=y)


def test_a_second_fit_uses_the_supports_of_its_own_data():
    guide = AutoNormal(bounded)
    for shift in (0.0, 10.0):
        trained = relbo.fit(
            0,
            bounded,
            (Y + shift,),
            guide=guide,
            num_iterations=100,
            starts=Starts(warm=False),
            progress=False,
        )
        draws = trained.guide.sample_posterior(
            jr.key(1), trained.params, Y + shift, sample_shape=(100,)
        )
        assert np.all(draws["upper"] >= Y.max() + shift)
        assert np.all(draws["upper"] <= Y.max() + shift + 1.0)


def test_another_optimiser_is_another_run():
    assert fit(optimiser=DESCENT).params["loc"] != fit().params["loc"]


def test_a_time_budget_ends_the_fit():
    began = time.monotonic()
    trained = fit(num_iterations=10**9, stopping=Stopping(seconds=0.0, early=False))
    assert trained.result is Result.OUT_OF_TIME
    assert trained.num_iterations < 5
    assert f"out of time after {trained.num_iterations}" in trained.message
    assert time.monotonic() - began < 60
    finished = fit(num_iterations=2, stopping=Stopping(seconds=0.0))
    assert finished.result is Result.FINISHED


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_time_budget_is_kept_where_iterations_are_slow(batch_size):
    def slow(y):
        jax.debug.callback(lambda: time.sleep(0.05))
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def run(seconds):
        began = time.monotonic()
        trained = relbo.fit(
            0,
            slow,
            (jnp.arange(10.0),),
            guide=AutoNormal(slow),
            loss=Trace_ELBO(),
            starts=Starts(warm=False),
            stopping=Stopping(seconds=seconds),
            batch_size=batch_size,
            progress=False,
        )
        return trained, time.monotonic() - began

    run(0.0)  # sets up NumPyro
    trained, seconds = run(6.0)
    # A chunk of 100 iterations would take 5 to 10 s.
    assert 4.0 < seconds < 6.6
    assert trained.result in (Result.OUT_OF_TIME, Result.CONVERGED)
    assert np.all(np.isfinite(trained.losses))
    assert len(trained.losses) == trained.num_iterations


def test_progress_shows_loss_and_speed(caplog):
    with caplog.at_level("INFO", "relbo"):
        fit(REFINED, num_iterations=100, progress=True)
        fit(num_iterations=100, progress=True)
    refined, plain = [line for line in caplog.messages if line.startswith("fit")]
    assert "loss" in refined
    assert "step size" in refined
    assert "it/s" in refined
    assert "learning rate" in plain


def test_progress_estimates_when_a_fit_will_end():
    """Two windows of 10 chunks, then twice as many at a falling rate."""
    rule = StoppingRule(Stopping(), is_default_optimiser=True)
    chunk = ChunkLosses(mean=0.0, variance=1.0, number=100)
    assert rule.expected_chunks(SeedProgress()) == 60
    assert rule.expected_chunks(SeedProgress(chunks=[chunk] * 15)) == 45
    assert rule.expected_chunks(SeedProgress(chunks=[chunk] * 30, start=20, cooling=40)) == 30
    forever = StoppingRule(Stopping(early=False), is_default_optimiser=True)
    assert forever.expected_chunks(SeedProgress()) == np.inf


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_iterations": 0}, "num_iterations: expected an integer of 1 or more, got 0"),
        ({"num_iterations": 1.5}, "num_iterations: expected an integer of 1 or more, got 1.5"),
        (
            {"num_iterations": True},
            "num_iterations: expected an integer of 1 or more, got True",
        ),
        ({"starts": 2}, "starts: expected relbo.Starts, got int"),
        ({"stopping": "early"}, "stopping: expected relbo.Stopping, got str"),
        ({"key": -1}, "key: expected"),
        ({"key": jr.split(jr.key(0))}, "key: expected one random key"),
        ({"batch_size": 9}, "no argument of the model has 9 rows"),
        ({"batch_size": 2.0}, "batch_size: expected an integer of 1 or more"),
        ({"batch_size": 0}, "batch_size: expected an integer of 1 or more"),
        ({"optimiser": numpyro.optim.Adam(0.1), "stopping": BACK_OFF}, "optax"),
    ],
)
def test_wrong_arguments_are_named(options, words, wrong_types):
    with pytest.raises(ValueError, match=words):
        fit(**options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Starts(num_seeds=0), "num_seeds: expected an integer of 1 or more, got 0"),
        (lambda: Starts(num_seeds=2.0), "num_seeds: expected an integer of 1 or more"),
        (lambda: Starts(warm=1), "warm: expected a bool"),
        (lambda: Stopping(patience=0), "patience: expected an integer of 1 or more, got 0"),
        (lambda: Stopping(patience=1.5), "patience: expected an integer of 1 or more"),
        (lambda: Stopping(early=100), "early: expected a bool"),
        (lambda: Stopping(seconds=-1.0), "seconds: expected at least 0"),
        (lambda: Stopping(seconds=math.nan), "seconds: expected at least 0"),
        (lambda: Stopping(seconds="60"), "seconds: expected at least 0 or None, got '60'"),
        (lambda: Stopping(seconds=True), "seconds: expected at least 0"),
        (lambda: Stopping(on_failure="ignore"), "on_failure: expected"),
    ],
)
def test_wrong_options_are_named(make, words, wrong_types):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("args", "words"),
    [(Y, r"got ndarray; write args=\(y,\)"), (3, "got int")],
    ids=["array", "number"],
)
def test_arguments_must_be_a_tuple(args, words, wrong_types):
    with pytest.raises(ValueError, match=f"args: expected a tuple of .*{words}"):
        relbo.fit(0, model, args)


def test_an_integer_seed_is_a_key():
    number, key = (fit(key=key, num_iterations=100) for key in (0, jr.key(0)))
    np.testing.assert_array_equal(number.losses, key.losses)


def test_infer_trains_a_given_guide():
    posterior = relbo.infer(
        jr.key(0), model, (Y,), guide=REFINED, num_draws=1600, seconds=20.0, progress=False
    )
    mean, sd, _ = closed_form()
    assert abs(posterior.draws["mean"].mean() - mean) < 0.2 * sd
    assert abs(np.log(posterior.draws["mean"].std() / sd)) < 0.2


@pytest.mark.parametrize(("size", "expected"), [(150, 2.0), (1000, 0.4)])
def test_many_parameters_of_a_warm_base_move_more_slowly(size, expected):
    units = slowed({"loc": jnp.full(size, 2.0)})
    np.testing.assert_allclose(units["loc"], expected)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_flat_optimiser_moves_each_parameter_in_its_own_unit(is_new):
    optimiser = FlatOptimiser(optax.adam(0.1))
    params = {"loc": jnp.zeros(3), "scale": jnp.ones((2, 2))}
    gradients = jax.tree.map(jnp.ones_like, params)
    units = {"loc": jnp.full(3, 2.0), "scale": jnp.full((2, 2), 5.0)}
    state = optimiser.init(params)
    state = rescaled(state, jnp.array(0.5), optimiser.vector(units), is_new)
    moved = optimiser.get_params(optimiser.update(gradients, state, value=0.0))
    for name, unit in units.items():
        expected = params[name] - 0.5 * 0.1 * (unit if is_new else 1.0)
        np.testing.assert_allclose(moved[name], expected, rtol=1e-5)
