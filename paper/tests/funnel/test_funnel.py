"""The funnel experiment: fits from several seeds, rows, and a small run."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from relbo import (
    SGD,
    SGLD,
    ChangeOfVariablesAccount,
    DiagonalNormal,
    ParticleAccount,
    Refinement,
    ReverseKernelAccount,
    Underdamped,
)
from relbo_paper.funnel import experiment as funnel
from relbo_paper.funnel.figures import FunnelCloud, draw_cloud
from relbo_paper.harness.experiments import Options
from relbo_paper.harness.figures import new_figure
from relbo_paper.harness.metrics import read_metrics
from relbo_paper.harness.seed_fits import LearnedGuide, draw_seeds, evaluate_seeds, fit_seeds
from relbo_paper.models import funnel_logdensity

TINY = funnel.FunnelSettings(
    num_seeds=2,
    sound_iterations=3,
    evaluation_draws=50,
    paper_step_sizes=(0.05,),
    sound_langevin_steps=(8,),
    training_draws=4,
    cloud_draws=50,
)


def normal_logdensity(z):
    return jnp.sum(jax.scipy.stats.norm.logpdf(z, 1.0, 0.5))


def refinement(kernel, account, num_steps):
    return Refinement(kernel, account, num_steps=num_steps, anneal=False, space="unconstrained")


def fit(**options):
    guide = LearnedGuide(
        DiagonalNormal(jnp.zeros(2)), refinement(SGLD(0.01), ReverseKernelAccount(), 0)
    )
    # With a constant step the last iterates would vary with the noise of eight draws.
    optimiser = optax.adam(optax.cosine_decay_schedule(0.05, 300))
    defaults = {"num_iterations": 300, "num_draws": 8}
    keys = jr.split(jr.key(0), 2)
    return fit_seeds(keys, guide, normal_logdensity, optimiser, **defaults | options)


@pytest.fixture(scope="module")
def fitted():
    return fit(watch=lambda guide: guide.base.centre)


def test_every_seed_finds_a_normal_target(fitted):
    assert fitted.losses.shape == (2, 300)
    np.testing.assert_allclose(fitted.guides.base.centre, np.ones((2, 2)), atol=0.05)
    np.testing.assert_array_equal(fitted.watched[:, -1], fitted.guides.base.centre)
    evaluation = evaluate_seeds(
        jr.split(jr.key(1), 2), fitted.guides, normal_logdensity, num_draws=5_000
    )
    np.testing.assert_allclose(evaluation.objective, np.zeros(2), atol=0.02)
    np.testing.assert_allclose(evaluation.variance, np.full((2, 2), 0.25), atol=0.05)
    assert evaluation.failed.tolist() == [0.0, 0.0]


def test_snapshot_returns_an_earlier_guide():
    early = fit(num_iterations=20, snapshot=5, watch=lambda guide: guide.base.centre)
    np.testing.assert_array_equal(early.guides.base.centre, early.watched[:, 4])
    assert not jnp.array_equal(early.guides.base.centre, early.watched[:, -1])


def test_failed_draws_are_counted_and_do_not_stop_the_fit():
    def half_defined(z):
        return jnp.where(z[0] > 0, normal_logdensity(z), jnp.nan)

    guide = LearnedGuide(
        DiagonalNormal(jnp.zeros(2)), refinement(SGLD(0.01), ParticleAccount(), 1)
    )
    keys = jr.split(jr.key(0), 2)
    fitted = fit_seeds(
        keys, guide, half_defined, optax.adam(0.05), num_iterations=5, num_draws=4
    )
    assert jnp.all(jnp.isfinite(fitted.guides.base.centre))
    evaluation = evaluate_seeds(keys, fitted.guides, half_defined, num_draws=100)
    assert jnp.all((evaluation.failed > 0.1) & (evaluation.failed < 0.9))


def test_folds_are_counted():
    guide = LearnedGuide(
        DiagonalNormal(jnp.zeros(2)),
        refinement(SGD(0.5), ChangeOfVariablesAccount(), 1),
    )
    guides = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), guide)
    evaluation = evaluate_seeds(
        jr.split(jr.key(0), 2), guides, funnel_logdensity, num_draws=100
    )
    assert jnp.all(evaluation.folded > 0.05)


def test_draws_have_the_mean_of_the_guide(fitted):
    keys = jr.split(jr.key(1), 2)
    drawn = draw_seeds(keys, fitted.guides, normal_logdensity, num_draws=2_000)
    assert drawn.position.shape == (2, 2_000, 2)
    np.testing.assert_allclose(drawn.position.mean(axis=1), np.ones((2, 2)), atol=0.1)


def test_rows_declare_whether_they_are_bounds():
    paper = {row.name: row.refinement.bound.valid for row in funnel.paper_rows(funnel.FULL)}
    assert paper.pop("T=0") is True
    assert set(paper.values()) == {False}
    sound = {row.name: row.refinement.bound.valid for row in funnel.sound_rows(funnel.FULL)}
    assert sound.pop("T=8 SGD, change of variables") is None
    assert set(sound.values()) == {True}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    directory = tmp_path_factory.mktemp("out") / "funnel"
    paper = funnel.paper_rows(TINY)[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(funnel, "QUICK", TINY)
        patch.setattr(funnel, "paper_rows", lambda _: paper)
        patch.setattr(funnel, "sound_rows", lambda _: SHORT_SOUND_ROWS)
        yield funnel.run(directory, Options(("paper", "sound"), quick=True, command="a test"))


SHORT_SOUND_ROWS = [
    funnel.FunnelRow(name, refinement(kernel, account, num_steps))
    for name, kernel, account, num_steps in (
        ("T=0", SGLD(), ReverseKernelAccount(), 0),
        (
            "T=32 annealed underdamped, reverse kernel, step < 0.1",
            Underdamped(0.1),
            ReverseKernelAccount(),
            1,
        ),
        ("T=8 SGD, change of variables", SGD(0.01), ChangeOfVariablesAccount(), 1),
    )
]
"""The rows of the figures and of a conditional bound, with few steps."""


def test_surrogates_are_never_called_elbo(outcome):
    records = read_metrics(outcome.metrics).records
    assert {record.protocol for record in records} == {"paper", "sound"}
    for record in records:
        if "ELBO" in record.metric:
            assert record.valid_bound is True
        if "surrogate" in record.metric:
            assert record.valid_bound is False


def test_records_have_the_papers_figures(outcome):
    records = read_metrics(outcome.metrics).records
    beside = {(record.row, record.metric): record.paper for record in records}
    assert beside["T=0", "negative ELBO at iteration 30"] == 1.011
    assert beside["T=1 SGLD 0.05, Monte Carlo", "surrogate loss at iteration 30"] == 0.667
    assert beside["T=1 SGLD 0.05, Monte Carlo", "negative ELBO at iteration 30"] is None


def test_figures_are_valid_files(outcome):
    assert {path.name for path in outcome.figures} == {
        f"{stem}.{kind}"
        for stem in ("paper_loss", "paper_contours", "sound_contours")
        for kind in ("png", "svg")
    }
    for path in outcome.figures:
        assert path.stat().st_size > 10_000
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"svg" in start


def test_cloud_has_the_axes_of_the_target():
    axes = new_figure(3, 3).subplots()
    draws = jnp.array([[1.0, -5.0], [2.0, -6.0]])
    draw_cloud(axes, FunnelCloud("", draws, jnp.array([0.5, -3.0]), jnp.ones(2)))
    dots, ellipse, _ = axes.lines
    np.testing.assert_array_equal(dots.get_xdata(), [-5.0, -6.0])
    np.testing.assert_array_equal(dots.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(np.max(np.asarray(ellipse.get_xdata())), -2.0, atol=0.01)
    np.testing.assert_allclose(np.max(np.asarray(ellipse.get_ydata())), 1.5, atol=0.01)
