import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from relbo import SGD, SGLD, ChangeOfVariables, DiagonalNormal, Particle, Refinement
from relbo.experiments import Options, funnel
from relbo.experiments._figures import new_figure
from relbo.experiments._fit import Guide, draw_seeds, evaluate_seeds, fit_seeds
from relbo.experiments._funnel_figures import Cloud, draw_cloud
from relbo.experiments._metrics import read_metrics
from relbo.models import funnel_logdensity

TINY = funnel.Settings(
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


def fit(**options):
    guide = Guide(DiagonalNormal(jnp.zeros(2)), Refinement(SGLD(0.01), num_steps=0))
    # A decaying step: the last iterates would otherwise wander with the noise of eight draws.
    optimiser = optax.adam(optax.cosine_decay_schedule(0.05, 300))
    defaults = {"num_iterations": 300, "num_draws": 8}
    keys = jr.split(jr.key(0), 2)
    return fit_seeds(keys, guide, normal_logdensity, optimiser, **defaults | options)


def test_the_fit_finds_a_normal_from_every_seed():
    fitted = fit()
    assert fitted.losses.shape == (2, 300)
    np.testing.assert_allclose(fitted.guides.base.centre, np.ones((2, 2)), atol=0.05)
    evaluation = evaluate_seeds(
        jr.split(jr.key(1), 2), fitted.guides, normal_logdensity, num_draws=5_000
    )
    np.testing.assert_allclose(evaluation.objective, np.zeros(2), atol=0.02)
    np.testing.assert_allclose(evaluation.variance, np.full((2, 2), 0.25), atol=0.05)
    assert evaluation.failed.tolist() == [0.0, 0.0]


def test_a_snapshot_is_the_shorter_fit():
    early = fit(num_iterations=20, snapshot=20)
    assert jnp.array_equal(early.guides.base.centre, fit(num_iterations=20).guides.base.centre)
    later = fit(num_iterations=20, snapshot=5)
    assert not jnp.array_equal(early.guides.base.centre, later.guides.base.centre)


def test_walks_that_fail_are_counted_and_do_not_stop_the_fit():
    def half_defined(z):
        return jnp.where(z[0] > 0, normal_logdensity(z), jnp.nan)

    guide = Guide(DiagonalNormal(jnp.zeros(2)), Refinement(SGLD(0.01), Particle(), num_steps=1))
    keys = jr.split(jr.key(0), 2)
    fitted = fit_seeds(
        keys, guide, half_defined, optax.adam(0.05), num_iterations=5, num_draws=4
    )
    assert jnp.all(jnp.isfinite(fitted.guides.base.centre))
    evaluation = evaluate_seeds(keys, fitted.guides, half_defined, num_draws=100)
    assert jnp.all((evaluation.failed > 0.1) & (evaluation.failed < 0.9))


def test_folds_are_counted():
    guide = Guide(
        DiagonalNormal(jnp.zeros(2)),
        Refinement(SGD(0.5), ChangeOfVariables(), num_steps=1),
    )
    guides = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), guide)
    evaluation = evaluate_seeds(
        jr.split(jr.key(0), 2), guides, funnel_logdensity, num_draws=100
    )
    assert jnp.all(evaluation.folded > 0.05)


def test_draws_are_the_guides_own():
    drawn = draw_seeds(jr.split(jr.key(1), 2), fit().guides, normal_logdensity, num_draws=2_000)
    assert drawn.position.shape == (2, 2_000, 2)
    np.testing.assert_allclose(drawn.position.mean(axis=1), np.ones((2, 2)), atol=0.1)


def test_every_row_says_truly_whether_it_is_a_bound():
    paper = {row.name: row.refinement.bound.valid for row in funnel.paper_rows(funnel.FULL)}
    assert paper.pop("T=0") is True
    assert set(paper.values()) == {False}
    sound = {row.name: row.refinement.bound.valid for row in funnel.sound_rows(funnel.FULL)}
    assert sound.pop("T=8 SGD, change of variables") is None
    assert set(sound.values()) == {True}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    directory = tmp_path_factory.mktemp("out") / "funnel"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(funnel, "QUICK", TINY)
        patch.setattr(funnel, "sound_rows", lambda s: _few(SOUND_ROWS(s)))
        yield funnel.run(directory, Options(("paper", "sound"), quick=True, command="a test"))


SOUND_ROWS = funnel.sound_rows


def _few(rows):
    wanted = (
        "T=0",
        "T=32 annealed underdamped, reverse kernel, step < 0.1",
        "T=8 SGD, change of variables",
    )
    return [row for row in rows if row.name in wanted]


def test_a_surrogate_is_never_called_an_elbo(outcome):
    records = read_metrics(outcome.metrics).records
    assert {record.protocol for record in records} == {"paper", "sound"}
    for record in records:
        if "ELBO" in record.metric:
            assert record.valid_bound is True
        if "surrogate" in record.metric:
            assert record.valid_bound is False


def test_the_papers_figures_stand_beside_ours(outcome):
    records = read_metrics(outcome.metrics).records
    beside = {(record.row, record.metric): record.paper for record in records}
    assert beside["T=0", "negative ELBO at iteration 30"] == 1.011
    assert beside["T=1 SGLD 0.05, Monte Carlo", "surrogate loss at iteration 30"] == 0.667
    assert beside["T=1 SGLD 0.05, Monte Carlo", "negative ELBO at iteration 30"] is None


def test_the_figures_are_pictures(outcome):
    assert {path.name for path in outcome.figures} == {
        f"{stem}.{kind}"
        for stem in ("paper_loss", "paper_contours", "sound_contours")
        for kind in ("png", "svg")
    }
    for path in outcome.figures:
        assert path.stat().st_size > 10_000
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"svg" in start


def test_the_cloud_lies_in_the_axes_of_the_target():
    axes = new_figure(3, 3).subplots()
    draws = jnp.array([[1.0, -5.0], [2.0, -6.0]])
    draw_cloud(axes, Cloud("", draws, jnp.array([0.5, -3.0]), jnp.ones(2)))
    dots, ellipse, _ = axes.lines
    np.testing.assert_array_equal(dots.get_xdata(), [-5.0, -6.0])
    np.testing.assert_array_equal(dots.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(np.max(np.asarray(ellipse.get_xdata())), -2.0, atol=0.01)
    np.testing.assert_allclose(np.max(np.asarray(ellipse.get_ydata())), 1.5, atol=0.01)
