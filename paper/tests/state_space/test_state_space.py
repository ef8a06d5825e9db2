"""The experiments on state-space models: point estimates, problems and small runs."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from relbo_paper.harness.experiments import Options
from relbo_paper.harness.metrics import read_metrics
from relbo_paper.harness.point_fits import PointOptimiser, PointRecipe, best_of
from relbo_paper.state_space import dlm, hmm
from relbo_paper.state_space import forecast as hmm_forecast
from relbo_paper.state_space.optimisation import (
    LikelihoodProblem,
    OptimisationSettings,
    run_problem,
)

TINY = OptimisationSettings(2, 6, (0.05,), (1e-4,))


def quadratic(position):
    return -0.5 * jnp.sum((position - 1.0) ** 2)


def test_point_optimiser_finds_the_maximum_with_and_without_steps():
    optimiser = PointOptimiser(quadratic, 400)
    starts = jnp.array([[3.0, -2.0], [0.0, 5.0]])
    for recipe in (PointRecipe(0, 0.1), PointRecipe(2, 0.1, 0.05)):
        fit = optimiser.fit(starts, recipe)
        np.testing.assert_allclose(fit.positions, np.ones((2, 2)), atol=1e-2)
        assert fit.losses.shape == (2, 400)


def test_loss_is_that_of_the_refined_point():
    start = jnp.array([[3.0, -2.0]])
    losses = PointOptimiser(quadratic, 1).fit(start, PointRecipe(1, 0.1, 0.5)).losses
    refined = start[0] + 0.5 * jax.grad(quadratic)(start[0])
    np.testing.assert_allclose(losses[0, 0], -quadratic(refined), rtol=1e-6)


def test_failed_starts_are_never_the_best():
    positions = jnp.arange(4.0)
    assert best_of(positions, jnp.array([jnp.nan, 2.0, 1.0, -jnp.inf])) == 2.0


def test_optimisation_writes_every_cost_of_every_t(tmp_path):
    problem = LikelihoodProblem(
        "quadratic", "A quadratic", quadratic, lambda key: jr.normal(key, (2,)), 1e-2
    )
    outcome = run_problem(problem, TINY, tmp_path, Options(protocols=("paper", "sound")))
    records = read_metrics(outcome.metrics).records
    assert {record.row for record in records} == {"T=0", "T=1 SGD 0.01", "T=2 SGD 0.01"} | {
        "T=1 SGD 0.0001",
        "T=2 SGD 0.0001",
    }
    assert len(records) == 2 * 3 * 4
    assert all(path.exists() for path in outcome.figures)
    # At equal iterations the steps inside the guide are not counted.
    after = {
        record.row: record.value
        for record in records
        if record.protocol == "paper" and record.metric.endswith("after 6 iterations")
    }
    assert after["T=2 SGD 0.01"] < after["T=1 SGD 0.01"] < after["T=0"]


@pytest.mark.parametrize("experiment", [hmm, dlm], ids=["hmm", "dlm"])
def test_gradient_is_finite_at_every_start(experiment):
    problem = experiment.problem()
    starts = jax.jit(jax.vmap(problem.draw_start))(jr.split(jr.key(0), 4))
    slopes = jax.jit(jax.vmap(jax.grad(problem.logdensity_fn)))(starts)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))


def test_dlm_starts_at_zero():
    # x_0 = 3 z_1 + 0.5 with z_1 ~ N(1, 1): a mean of 3.5 and a variance of 9 + 1.
    first = dlm.process({"transition": jnp.array(0.0), "emission": jnp.array(0.0)})
    moments = first.forecast(jnp.full(1, jnp.nan), 1)
    # One more step: 0.5 * 1 + 1 and 0.25 + 1.
    np.testing.assert_allclose(moments.loc, [5.0], rtol=1e-6)
    np.testing.assert_allclose(moments.scale, [np.sqrt(9 * 1.25 + 1)], rtol=1e-6)


def test_alternating_chain_forecasts_perfectly():
    states = jnp.arange(hmm.NUM_STATES)
    # States 0 and 1 swap, the others go to 0; a state shows its own number.
    goes_to = jnp.where(states == 0, 1, 0)
    logits = {
        "transition": 50.0 * jax.nn.one_hot(goes_to, hmm.NUM_STATES),
        "emission": 50.0 * jnp.eye(hmm.NUM_STATES),
    }
    scores = hmm_forecast.scores(hmm_forecast.forecast(logits))
    assert scores["accuracy"] == 1.0
    np.testing.assert_allclose(scores["log score"], 0.0, atol=1e-4)
    np.testing.assert_allclose(scores["predictive entropy"], 0.0, atol=1e-4)


def test_forecast_records_have_the_papers_figures(tmp_path, monkeypatch):
    tiny = hmm_forecast.ForecastSettings(2, (1e-2,), 20, 2, 20)
    monkeypatch.setattr(hmm_forecast, "QUICK", tiny)
    outcome = hmm_forecast.run(tmp_path, Options(protocols=("paper",), quick=True))
    records = read_metrics(outcome.metrics).records
    printed = {
        (record.row, record.metric): record.paper
        for record in records
        if record.paper is not None
    }
    assert printed["T=0, 50 epochs", "accuracy"] == 0.40
    assert printed["T=1 SGD 0.01, 20 epochs", "log score"] == -0.682
    assert all(path.exists() for path in outcome.figures)
