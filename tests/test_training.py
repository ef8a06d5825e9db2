"""Training: it reaches what is known in closed form, and says so when it does not."""

import time

import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import relbo
from relbo._fitting.arguments import first_order, next_rows, split_call
from relbo._fitting.monitor import Monitor, Seed
from relbo.training import Result

NUM, PRIOR_SD = 8, 2.0
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4, -0.4, 2.9, 1.1], np.float32)


def model(y, batch_size=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR_SD))
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def own_guide(y, batch_size=None):
    loc = numpyro.param("loc", jnp.zeros(()))
    scale = numpyro.param("scale", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


PLAIN = AutoNormal(model)
REFINED = relbo.AutoRefined(model, num_steps=2)


def closed_form(y=Y):
    precision = PRIOR_SD**-2 + NUM
    covariance = PRIOR_SD**2 * np.ones((NUM, NUM)) + np.eye(NUM)
    evidence = dist.MultivariateNormal(jnp.zeros(NUM), covariance).log_prob(jnp.asarray(y))
    return float(np.sum(y) / precision), precision**-0.5, float(evidence)


def fit(guide=own_guide, y=Y, key=0, **options):
    options = {"num_iterations": 300, "progress": False, **options}
    return relbo.fit(jr.key(key), model, (y,), guide=guide, **options)


def steps(rate, bad_at=None):
    """Gradient descent, with a rate that is no number at one iteration."""
    return optax.sgd(lambda count: jnp.where(count == bad_at, jnp.nan, rate))


@pytest.mark.parametrize(
    "guide", [PLAIN, REFINED, own_guide], ids=["plain", "refined", "function"]
)
def test_reaches_the_evidence_and_the_posterior(guide):
    trained = fit(guide, num_iterations=6000, patience=200)
    mean, sd, evidence = closed_form()
    assert trained.result is Result.CONVERGED
    assert trained.num_iterations == len(trained.losses) < 6000
    assert "converged" in trained.message
    assert "Fit(" in repr(trained)
    # The rate at the end leaves the parameters a few hundredths from where they should be.
    assert abs(trained.final_loss + evidence) < 4 * trained.final_stderr + 0.01
    if guide is own_guide:
        found = trained.params["loc"], trained.params["scale"]
    else:
        draws = trained.guide.sample_posterior(
            jr.key(1), trained.params, Y, sample_shape=(4000,)
        )["mean"]
        found = draws.mean(), draws.std()
    assert abs(found[0] - mean) < 0.1 * sd
    assert abs(np.log(found[1] / sd)) < 0.1


def test_default_guide_learns_correlations():
    trained = relbo.fit(jr.key(0), model, (Y,), num_iterations=100, progress=False)
    assert isinstance(trained.guide, relbo.AutoRefined)
    assert isinstance(trained.guide.base, AutoMultivariateNormal)
    assert trained.result is Result.FINISHED
    assert "finished" in trained.message
    assert abs(trained.final_loss + closed_form()[2]) < 4 * trained.final_stderr + 0.05


def test_is_numpyros_svi_with_the_users_optimiser():
    optimiser = lambda: optax.adam(optax.cosine_decay_schedule(0.1, 150))
    trained = fit(
        optimiser=optimiser(), warm_start=False, num_iterations=150, early_stopping=False
    )
    svi = SVI(model, own_guide, optimiser(), Trace_ELBO(16))
    state = svi.init(jr.split(jr.key(0), 1)[0], Y)
    state, losses = jax.lax.scan(lambda s, _: svi.update(s, Y), state, length=150)
    np.testing.assert_allclose(trained.losses, losses, rtol=1e-4)
    for name, value in svi.get_params(state).items():
        np.testing.assert_allclose(trained.params[name], value, rtol=1e-4)


def test_minibatches():
    trained = relbo.fit(
        jr.key(0),
        model,
        (Y,),
        {"batch_size": 4},
        guide=own_guide,
        batch_size=4,
        num_iterations=2000,
        progress=False,
    )
    mean, sd, evidence = closed_form()
    assert abs(trained.params["loc"] - mean) < 0.2 * sd
    assert abs(np.log(trained.params["scale"] / sd)) < 0.2
    assert abs(trained.final_loss + evidence) < 4 * trained.final_stderr + 0.1


def test_an_epoch_sees_every_row_once():
    layout, arrays = split_call((np.arange(9.0), np.zeros(3)), {}, 4)
    assert layout.is_cut == (True, False)
    order = first_order(jr.key(0), layout)
    epochs = []
    for iteration in range(6):
        order, rows = next_rows(order, layout, jnp.int32(iteration))
        epochs.append(np.asarray(layout.call(arrays, rows).args[0]))
    seen = [np.concatenate(epochs[i : i + 2]) for i in (0, 2, 4)]
    assert all(len(set(rows)) == 8 for rows in seen)
    assert len({tuple(rows) for rows in seen}) == 3


@pytest.fixture(scope="module")
def three_seeds():
    return fit(num_seeds=3, keep="all", warm_start=False)


def test_all_seeds(three_seeds):
    assert three_seeds.params["loc"].shape == (3,)
    assert three_seeds.losses.shape == three_seeds.seed_losses.shape == (3, 300)
    assert len(set(np.asarray(three_seeds.final_loss))) == 3
    assert three_seeds.best_seed == np.argmin(three_seeds.final_loss)
    assert len(three_seeds.seed_results) == 3


def test_best_seed(three_seeds):
    best = fit(num_seeds=3, keep="best", warm_start=False)
    index = three_seeds.best_seed
    assert best.best_seed == index
    assert f"seed {index} of 3" in best.message
    np.testing.assert_array_equal(best.params["loc"], three_seeds.params["loc"][index])
    np.testing.assert_array_equal(best.losses, three_seeds.losses[index])
    assert best.final_loss == three_seeds.final_loss[index]


def test_early_stopping_can_be_off():
    options = {"optimiser": steps(0.02), "num_iterations": 1050, "patience": 100}
    early = fit(early_stopping=True, **options)
    full = fit(early_stopping=False, **options)
    assert early.result is Result.CONVERGED
    assert early.num_iterations < 1000
    assert full.result is Result.FINISHED
    assert full.num_iterations == len(full.losses) == 1050
    np.testing.assert_array_equal(full.losses[: early.num_iterations], early.losses)


def test_default_rate_goes_down_before_the_stop():
    monitor = Monitor(is_default=True, window=1, stops_early=True, backs_off=False)
    seed, flat, factors = Seed(), np.zeros(100), []
    for chunk in range(1, 7):
        factors.append(monitor.factor(seed))
        monitor.look(seed, flat, -1, 100 * chunk)
    assert seed.outcome == "converged"
    assert seed.ended_at == 600
    np.testing.assert_allclose(factors, [1, 1, 1 / 3, 1 / 3, 0.1, 0.1], rtol=1e-6)


def test_nan_stops_with_the_last_good_state():
    trained = fit(optimiser=steps(0.02, bad_at=137), early_stopping=False)
    before = fit(optimiser=steps(0.02, bad_at=137), early_stopping=False, num_iterations=137)
    assert trained.result is Result.DIVERGED
    assert trained.num_iterations == 137
    assert "diverged at iteration 137" in trained.message
    assert "Likely cause: the learning rate is too high" in trained.message
    for name in before.params:
        np.testing.assert_array_equal(trained.params[name], before.params[name])


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_nan_in_the_data_is_named():
    bad = Y.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match=r"args\[0\] of the model's arguments holds NaN"):
        fit(AutoNormal(model), bad)
    trained = fit(own_guide, bad)
    assert trained.result is Result.DIVERGED
    assert trained.num_iterations == 0
    assert "args[0] of the model's arguments holds NaN" in trained.message
    assert all(np.all(np.isfinite(value)) for value in trained.params.values())


def test_a_loss_that_explodes_goes_back_to_the_best_state():
    # Ten times too high a rate from iteration 200 on.
    optimiser = optax.sgd(lambda count: jnp.where(count < 200, 0.02, 0.25))
    trained = fit(optimiser=optimiser, early_stopping=False, num_iterations=1000)
    assert trained.result is Result.DIVERGED
    assert abs(trained.params["loc"] - closed_form()[0]) < 0.3
    assert abs(trained.final_loss + closed_form()[2]) < 0.5


def test_backing_off_arrives():
    options = {"optimiser": steps(2.0), "num_iterations": 1500, "early_stopping": False}
    assert fit(**options).result is Result.DIVERGED
    trained = fit(on_failure="back off", **options)
    mean, sd, _ = closed_form()
    assert trained.result is Result.FINISHED
    assert "the rate was halved" in trained.message
    assert abs(trained.params["loc"] - mean) < sd
    assert np.mean(trained.losses[-100:]) < -closed_form()[2] + 1.0


def test_backing_off_gives_up():
    options = {"optimiser": steps(0.02, bad_at=0), "on_failure": "back off"}
    trained = fit(num_iterations=1500, **options)
    assert trained.result is Result.DIVERGED
    assert "halved 10 times" in trained.message
    assert trained.params["loc"] == 0.0
    assert fit(num_iterations=200, **options).result is Result.DIVERGED


def test_one_bad_seed_does_not_spoil_the_rest():
    def trap(y):
        loc = numpyro.param("loc", lambda key: jr.normal(key))
        numpyro.sample("mean", dist.Normal(loc, jnp.where(loc > 0, 1.0, jnp.nan)))

    trained = fit(trap, num_seeds=4, num_iterations=100)
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
    trained = relbo.fit(
        jr.key(0),
        regression,
        (x, y),
        guide=AutoMultivariateNormal(regression),
        num_iterations=400,
        progress=False,
    )
    tril = np.asarray(trained.params["auto_scale_tril"])
    np.testing.assert_allclose(trained.params["auto_loc"], mean, atol=0.1 * sd.min())
    np.testing.assert_allclose(np.linalg.norm(tril, axis=1), sd, rtol=0.1)


@pytest.fixture
def compilations():
    """What JAX has lowered or compiled since."""
    found, is_on = [], True

    def listen(event, *_, **__):
        is_trace = event.endswith("trace_duration")
        if is_on and event.startswith("/jax/core/compile/") and not is_trace:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    is_on = False


@pytest.mark.parametrize("guide", [PLAIN, REFINED], ids=["plain", "refined"])
def test_a_second_fit_compiles_nothing(guide, compilations):
    first = fit(guide, optimiser=optax.adam(0.02))
    assert any("backend_compile" in event for event in compilations)
    compilations.clear()
    second = fit(guide, Y + 1.0, key=1, optimiser=optax.adam(0.02))
    assert compilations == []
    assert second.losses[-1] != first.losses[-1]
    assert abs(second.final_loss + closed_form(Y + 1.0)[2]) < 0.1


def test_another_optimiser_is_another_run():
    one, other = (fit(optimiser=optax.sgd(rate)) for rate in (0.01, 0.02))
    assert one.params["loc"] != other.params["loc"]


def test_seconds():
    began = time.monotonic()
    trained = fit(num_iterations=10**9, seconds=0.0, early_stopping=False)
    assert trained.result is Result.OUT_OF_TIME
    assert trained.num_iterations == 100
    assert "out of time after 100" in trained.message
    assert time.monotonic() - began < 60
    assert fit(num_iterations=100, seconds=0.0).result is Result.FINISHED


def test_progress_names_loss_and_speed(capsys):
    fit(REFINED, num_iterations=100, progress=True)
    fit(num_iterations=100, progress=True)
    refined, plain = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("relbo: fit")
    ]
    assert "loss" in refined
    assert "step size" in refined
    assert "it/s" in refined
    assert "learning rate 0.03" in plain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_iterations": 0}, "num_iterations: expected at least 1, got 0"),
        ({"num_seeds": 0}, "num_seeds"),
        ({"patience": 0}, "patience"),
        ({"keep": "some"}, "keep: expected"),
        ({"on_failure": "ignore"}, "on_failure: expected"),
        ({"batch_size": 9}, "no argument of the model has 9 rows"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"loss": Trace_ELBO(), "num_particles": 2}, "num_particles"),
        ({"optimiser": numpyro.optim.Adam(0.1), "on_failure": "back off"}, "optax"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        fit(**options)


def test_infer_trains_a_given_guide():
    posterior = relbo.infer(
        jr.key(0), model, (Y,), guide=REFINED, num_draws=1600, seconds=20.0, progress=False
    )
    mean, sd, _ = closed_form()
    assert abs(posterior.draws["mean"].mean() - mean) < 0.2 * sd
    assert abs(np.log(posterior.draws["mean"].std() / sd)) < 0.2
