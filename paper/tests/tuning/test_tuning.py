"""The tuning experiment: the efficiency of a run, a small run, and the verdicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo import DiagonalNormal
from relbo_paper.harness.claims import Numbers
from relbo_paper.harness.experiments import Options
from relbo_paper.harness.metrics import Record, read_metrics
from relbo_paper.tuning import experiment as tuning
from relbo_paper.tuning.claims import CLAIMS, EFFICIENCY, STEP_SIZE
from relbo_paper.tuning.targets import TuningTarget, _funnel, _gaussian

TINY = tuning.TuningSettings(
    num_seeds=2, num_iterations=20, num_steps=2, training_draws=4, num_chains=8, long_steps=20
)


def test_efficiency_of_an_autoregression():
    """Langevin steps on a standard normal, whose averages have a known variance."""
    step_size, length = 0.5, 400
    target = TuningTarget(
        "normal", 1, lambda z: -0.5 * jnp.sum(z**2), lambda z: z, np.zeros(1), np.ones(1)
    )
    settings = TINY._replace(num_chains=2000, long_steps=length)
    base = DiagonalNormal(jnp.zeros((1, 1)))
    measure = tuning._measurer("paper", target, settings)
    efficiency = measure(base, jnp.array([[step_size, 1e-8, 5.0]]))[0]
    # z' = z / 2 + noise: variance 4 / 3, and an autocorrelation time of three.
    expected = 1000 / (4 / 3 * 3)
    assert efficiency[0] == pytest.approx(expected, rel=5 * np.sqrt(2 / 2000) + 0.02)
    # A chain that hardly moves is one draw, and a divergent one none.
    assert efficiency[1] == pytest.approx(1000 / length, rel=0.2)
    assert efficiency[2] == 0.0


@pytest.mark.parametrize("make", [_funnel, _gaussian])
def test_moments_of_the_targets(make):
    target = make()
    start = jnp.zeros(target.size)
    assert jnp.isfinite(target.logdensity_fn(start))
    assert target.statistics(start).shape == target.mean.shape
    known = {"funnel": (1, 1.35**2), "correlated Gaussian": (-1, 1.0)}[target.name]
    assert target.mean[known[0]] == pytest.approx(known[1], rel=0.02)


def test_small_run_writes_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "QUICK", TINY)
    monkeypatch.setattr(tuning, "targets", lambda quick: [_gaussian()])
    with jax.numpy_rank_promotion("allow"):
        outcome = tuning.run(tmp_path, Options(protocols=("sound",), quick=True))
    records = read_metrics(outcome.metrics).records
    assert len(records) == 1 + 2 + 2 * len(tuning.GRID)
    assert {record.protocol for record in records} == {"sound"}
    assert all(record.value is not None and record.value >= 0 for record in records)
    assert all(figure.exists() for figure in outcome.figures)
    assert [claim.verdict != "not run" for claim in CLAIMS.claims(Numbers(records))] == [
        True
    ] * 2


def record(row, value, metric=EFFICIENCY):
    return Record("tuning", "sound", row, metric, value, 0.1, 2, "", None, None, 1.0)


def test_verdicts_follow_from_the_numbers():
    def verdicts(learned, grid, without):
        records = [
            record("a: learned", 0.1, STEP_SIZE),
            record("a: learned start, learned step", learned),
            record("a: learned start, step 0.1", grid),
            record("a: start not learned, step 0.1", without),
        ]
        return [claim.verdict for claim in CLAIMS.claims(Numbers(records))]

    assert verdicts(10.0, 11.0, 1.0) == ["reproduced", "reproduced"]
    assert verdicts(1.0, 11.0, 12.0) == ["not confirmed", "not confirmed"]
    # Worse, but not much.
    assert verdicts(10.0, 11.0, 9.0) == ["reproduced", "not confirmed"]
    assert [claim.verdict for claim in CLAIMS.claims(Numbers([]))] == ["not run"] * 2
