"""The classifier: class evidence compared with exact evidence, and a small run."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro import handlers
from statsmodels.stats.proportion import proportion_confint

from relbo import SGD, GaussianAccount, Refinement, refine
from relbo.evaluate import CategoricalForecast
from relbo_paper.data import ImageSplit, ImageSplits
from relbo_paper.harness.cells import Cell
from relbo_paper.harness.claims import Numbers
from relbo_paper.harness.experiments import InputError, Options
from relbo_paper.harness.metrics import over_seeds, read_metrics
from relbo_paper.images import classifier as cvae
from relbo_paper.images import work as _image_work
from relbo_paper.images.class_scores import (
    class_evidence,
    paper_class_scores,
    with_steps,
)
from relbo_paper.images.classifier_claims import POOLED
from relbo_paper.images.figures import wilson_interval
from relbo_paper.models import autoencoder

NUM_PIXELS, NUM_LATENTS, NUM_CLASSES = 5, 2, 3


class Shifted(eqx.Module):
    """A linear decoder whose mean depends on the class, so that the evidence is normal."""

    matrix: jax.Array
    shifts: jax.Array

    def __call__(self, code, label):
        return code @ self.matrix + label @ self.shifts


class Wide(eqx.Module):
    """An encoder that returns the prior."""

    loc: jax.Array

    def __call__(self, image, label):
        return self.loc, jnp.ones(NUM_LATENTS)


def conditional_model():
    matrix = 0.5 * jr.normal(jr.key(1), (NUM_LATENTS, NUM_PIXELS))
    shifts = jr.normal(jr.key(2), (NUM_CLASSES, NUM_PIXELS))
    vae = autoencoder(
        num_pixels=NUM_PIXELS,
        num_latents=NUM_LATENTS,
        num_classes=NUM_CLASSES,
        decoder=lambda key: Shifted(matrix, shifts),
        encoder=lambda key: Wide(jnp.zeros(NUM_LATENTS)),
        likelihood=lambda mean: dist.Normal(mean, 1.0).to_event(1),
    )
    weights = lambda network: eqx.filter(network, eqx.is_inexact_array)
    params = {
        "decoder$params": weights(vae.decoder),
        "encoder$params": weights(vae.encoder),
        "refined_step_size": jnp.array(0.05),
    }
    covariance = matrix.T @ matrix + jnp.eye(NUM_PIXELS)
    log_evidence = lambda image: jnp.stack(
        [dist.MultivariateNormal(shift, covariance).log_prob(image) for shift in shifts]
    )
    return vae, params, log_evidence


@pytest.mark.parametrize("num_steps", [0, 2])
def test_class_evidence_is_exact_with_many_draws(num_steps):
    vae, params, log_evidence = conditional_model()
    images = jr.normal(jr.key(3), (4, NUM_PIXELS))
    refinement = Refinement(
        SGD(0.05), GaussianAccount(), num_steps=num_steps, space="unconstrained", anneal=False
    )
    guide = refine(vae.guide, vae.model, refinement=refinement)
    handlers.seed(guide, 0)(images[:1], jnp.zeros(1, int))
    found = class_evidence(
        jr.key(4), vae, guide, params, np.asarray(images), num_draws=4000, batch_size=2
    )
    # The log weights of a wide proposal in two dimensions have a spread of about one.
    np.testing.assert_allclose(found, jax.vmap(log_evidence)(images), atol=5 * 4000**-0.5)


class Linear(eqx.Module):
    """A decoder of one class."""

    matrix: jax.Array
    shift: jax.Array

    def __call__(self, code):
        return code @ self.matrix + self.shift


class Prior(eqx.Module):
    """An encoder that returns the prior."""

    loc: jax.Array

    def __call__(self, image):
        return self.loc, jnp.ones(NUM_LATENTS)


def test_each_class_may_have_its_own_autoencoder():
    matrices = 0.5 * jr.normal(jr.key(1), (NUM_CLASSES, NUM_LATENTS, NUM_PIXELS))
    shifts = jr.normal(jr.key(2), (NUM_CLASSES, NUM_PIXELS))
    vae = autoencoder(
        num_pixels=NUM_PIXELS,
        num_latents=NUM_LATENTS,
        decoder=lambda key: Linear(matrices[0], shifts[0]),
        encoder=lambda key: Prior(jnp.zeros(NUM_LATENTS)),
        likelihood=lambda mean: dist.Normal(mean, 1.0).to_event(1),
    )
    params = {
        "decoder$params": Linear(matrices, shifts),
        "encoder$params": Prior(jnp.zeros((NUM_CLASSES, NUM_LATENTS))),
    }
    images = jr.normal(jr.key(3), (4, NUM_PIXELS))
    found = class_evidence(
        jr.key(4), vae, vae.guide, params, np.asarray(images), num_draws=4000, batch_size=2
    )
    for label in range(NUM_CLASSES):
        covariance = matrices[label].T @ matrices[label] + jnp.eye(NUM_PIXELS)
        exact = jax.vmap(dist.MultivariateNormal(shifts[label], covariance).log_prob)(images)
        np.testing.assert_allclose(found[:, label], exact, atol=5 * 4000**-0.5)


def small_work(tmp_path, labels):
    images = np.random.RandomState(0).randint(0, 2, (len(labels), 784)).astype(np.uint8)
    part = ImageSplit(images, np.asarray(labels, np.uint8))
    settings = cvae.ClassifierSettings(1, 1, 0.1, None, 4, 1e-3, 1e-3, 0.0)
    return cvae.ClassifierWork("sound", settings, ImageSplits(part, part, part), tmp_path)


def test_autoencoder_of_a_class_has_only_its_images(tmp_path, monkeypatch):
    monkeypatch.setattr(cvae, "BATCH_SIZE", 2)
    work = small_work(tmp_path, [0, 1, 2, 1, 1])
    of_class = work.of_class(1)
    np.testing.assert_array_equal(of_class.data()[0], work.splits.train.images[[1, 3, 4]])
    assert len(of_class.data()) == 1
    assert of_class.model(work.rows()[0]).num_classes is None
    with pytest.raises(InputError, match="1 training images have the label 2"):
        work.of_class(2)


@pytest.mark.slow
def test_ten_autoencoders_are_trained_and_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(cvae, "BATCH_SIZE", 2)
    monkeypatch.setattr(cvae, "MANY_DRAWS", 6)
    monkeypatch.setattr(_image_work, "BATCH_SIZE", 2)
    work = small_work(tmp_path, [*range(10), *range(10)])
    row = next(row for row in work.rows() if cvae.is_by_class(row))
    trained = work.train(row, 0)
    assert all(len(leaf) == 10 for leaf in jax.tree.leaves(trained.params))
    scores = work.score(row, 0, trained)
    assert set(scores) > {f"accuracy / {row.name}, K = {number}" for number in (5, 6)}
    assert all(np.isfinite(score) for score in scores.values())


def test_evidence_is_pooled_when_all_seeds_are_done(tmp_path, monkeypatch):
    work = small_work(tmp_path, [0, 1, 2, 1])
    work = replace(work, settings=work.settings._replace(num_seeds=3))
    row = work.rows()[0]
    evidence = np.random.RandomState(1).normal(size=(3, 4, 10)).astype(np.float32)
    found_by = lambda _, row, seed, trained: [(f"{row.name}, K = 5", evidence[seed])]
    monkeypatch.setattr(cvae.ClassifierWork, "_evidence", found_by)
    drawn = lambda: {path.stem for path in tmp_path.glob("*.png")}
    cells = []
    for seed in range(3):
        assert work.pooled(row) == {}
        cells.append(Cell(work.score(row, seed, None), 1.0, None, "today"))
        assert any("together" in stem for stem in drawn()) == (seed == 2)
    assert len(drawn()) == 2
    (name, found), *others = work.pooled(row).items()
    assert name == f"{row.name}, K = 5, three seeds together"
    assert others == []
    np.testing.assert_allclose(found, evidence.mean(axis=0), rtol=1e-5)
    # The records need only the cells; an older cell may have a value of an earlier run.
    cells[0].scores[f"accuracy / {name}"] = 0.125
    elsewhere = replace(work, directory=tmp_path / "elsewhere")
    records = {(r.row, r.metric): r for r in elsewhere.records(row, cells)}
    guesses = np.argmax(evidence.sum(axis=0), axis=1)
    record = records[name, "accuracy"]
    assert record.value == np.mean(guesses == [0, 1, 2, 1])
    assert record.seeds == 1
    # Evidence with other settings, or of a run that started again, is not used.
    assert replace(work, settings=work.settings._replace(learning_rate=1.0)).pooled(row) == {}
    work.forget(row, 2)
    assert work.pooled(row) == {}


def test_starting_again_removes_the_checkpoints_of_every_class(tmp_path, monkeypatch):
    monkeypatch.setattr(cvae, "BATCH_SIZE", 1)
    work = small_work(tmp_path, range(10))
    row = next(row for row in work.rows() if cvae.is_by_class(row))
    kept = [work.of_class(label)._checkpoints(row, 0) for label in range(10)]
    for directory in kept:
        directory.mkdir(parents=True)
    work.forget(row, 0)
    assert not any(directory.exists() for directory in kept)


def test_pooled_models_are_not_compared_with_one():
    row = lambda name, value, metric, protocol="sound": over_seeds(
        [value, value],
        experiment="cvae",
        protocol=protocol,
        row=name,
        metric=metric,
        estimator="",
        seconds=0.0,
    )
    found = [
        row("IWAE, K = 5", 0.9, cvae.ACCURACY),
        row(f"IWAE, K = 5{POOLED}", 0.99, cvae.ACCURACY),
        row("VIS, K = 5", 0.95, cvae.ACCURACY),
        row("IWAE, K = 5", 0.2, cvae.CALIBRATION),
        row(f"IWAE, K = 5{POOLED}", 0.01, cvae.CALIBRATION),
        row("T = 0, 0", 0.1, cvae.CALIBRATION, "paper"),
    ]
    _, beats, _, calibrated = (claim.verdict for claim in cvae.CLAIMS.claims(Numbers(found)))
    assert (beats, calibrated) == ("better", "not confirmed")


def test_steps_at_test_time_correct_a_bad_encoder():
    vae, params, log_evidence = conditional_model()
    params["encoder$params"] = Wide(jnp.full(NUM_LATENTS, 6.0))  # far from every posterior
    images = np.asarray(jr.normal(jr.key(3), (4, NUM_PIXELS)))
    guide, networks = with_steps(vae, params, images, num_steps=20, step_size=0.2)
    assert "refined_step_size" not in networks
    found = lambda guide, params: class_evidence(
        jr.key(4), vae, guide, params, images, num_draws=200, batch_size=2
    )
    error = lambda evidence: np.abs(evidence - jax.vmap(log_evidence)(images)).max()
    assert error(found(guide, networks)) < 5 * 200**-0.5 < error(found(vae.guide, params))


def test_papers_average_exceeds_the_evidence():
    vae, params, log_evidence = conditional_model()
    images = jr.normal(jr.key(3), (4, NUM_PIXELS))
    score = lambda num_steps: paper_class_scores(
        jr.key(4),
        vae,
        params,
        np.asarray(images),
        num_draws=50,
        step_size=0.1,
        num_steps=num_steps,
        batch_size=2,
    )
    plain, climbed = score(0), score(20)
    assert np.all(climbed > plain)
    assert np.all(climbed > jax.vmap(log_evidence)(images))


def test_scores_match_a_manual_computation():
    sure = jnp.log(jnp.full((3, cvae.NUM_CLASSES), 1e-9).at[jnp.arange(3), [0, 1, 2]].set(1.0))
    unsure = jnp.zeros((1, cvae.NUM_CLASSES))
    forecast = CategoricalForecast(jnp.concatenate([sure, unsure]))
    scores = cvae.scores_of(forecast, jnp.array([0, 1, 9, 5]))
    np.testing.assert_allclose(scores[cvae.ACCURACY], 0.5)
    np.testing.assert_allclose(scores[cvae.ABSTAINED], 0.25)
    worth = (1.0 + 1.0 + cvae.WRONG + cvae.ABSTAIN) / 4
    np.testing.assert_allclose(scores[cvae.UTILITY], worth)


@pytest.mark.slow
def test_both_protocols_run(monkeypatch, tmp_path):
    tiny = cvae.ClassifierSettings(1, 1, 0.1, None, 4, 1e-3, 1e-3, 0.0)
    monkeypatch.setattr(cvae, "QUICK", tiny)
    monkeypatch.setattr(cvae, "MANY_DRAWS", 6)
    monkeypatch.setattr(_image_work, "BATCH_SIZE", 4)
    images = np.random.RandomState(0).randint(0, 2, (8, 784))
    parts = ("train", "valid", "test")
    labels = {f"{part}_labels": np.arange(8) for part in parts}
    np.savez(tmp_path / "binarized_mnist.npz", **dict.fromkeys(parts, images), **labels)
    options = Options(protocols=("paper", "sound"), quick=True, data_dir=tmp_path)
    outcome = cvae.run(tmp_path / "out", options)
    records = read_metrics(outcome.metrics).records
    paper = {r.row: r.paper for r in records if r.protocol == "paper" and r.paper}
    assert paper == cvae.PAPER
    assert len({r.row for r in records if r.protocol == "sound"}) == 6
    assert len(outcome.figures) == 9
    assert all(claim.verdict != "not run" for claim in cvae.CLAIMS.claims(Numbers(records)))


def test_error_bars_are_wilson_intervals():
    right, number = np.array([2, 5, 0]), np.array([2, 10, 7])
    level = 2 * scipy.stats.norm.sf(1.0)
    wanted = proportion_confint(right, number, alpha=level, method="wilson")
    np.testing.assert_allclose(wilson_interval(right / number, number), wanted, atol=1e-12)


@pytest.mark.parametrize(("num_seeds", "verdict"), [(1, "not confirmed"), (3, "better")])
def test_one_seed_is_never_better(num_seeds, verdict):
    found = lambda row, share: over_seeds(
        [share] * num_seeds,
        experiment="cvae",
        protocol="sound",
        row=row,
        metric="accuracy",
        estimator="",
        seconds=1.0,
    )
    claims = cvae.CLAIMS.claims(Numbers([found("IWAE", 0.97), found("VIS T=5", 0.98)]))
    assert claims[1].verdict == verdict
