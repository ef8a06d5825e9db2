"""The image experiments on tiny data, their rows, claims and optimisers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo import fit
from relbo_paper.data import ImageSplit, ImageSplits
from relbo_paper.harness import cells as _cells
from relbo_paper.harness.cells import Cell
from relbo_paper.harness.claims import Numbers
from relbo_paper.harness.experiments import InputError, Options
from relbo_paper.harness.metrics import over_seeds, read_metrics
from relbo_paper.images import autoencoders as _autoencoders
from relbo_paper.images import vae_fashion, vae_mnist
from relbo_paper.images import work as _image_work
from relbo_paper.images.claims import autoencoder_claims
from relbo_paper.images.rows import rows_of, sound_rows

slow = pytest.mark.slow  # each compiles a guide

TINY = _autoencoders.AutoencoderSettings(
    num_seeds=1,
    sound_epochs=1,
    paper_share=0.1,
    num_train=None,
    num_test=4,
    num_annealed=2,
    num_temperatures=4,
    num_draws=8,
    num_rounds=1,
    learning_rate=1e-3,
    matrix_rate=3e-3,
    weight_decay=0.1,
)


@pytest.fixture
def tiny_run(monkeypatch, tmp_path):
    monkeypatch.setattr(_autoencoders, "QUICK", TINY)
    monkeypatch.setattr(_image_work, "BATCH_SIZE", 4)
    images = np.random.RandomState(0).randint(0, 2, (8, 784))
    parts = ("train", "valid", "test")
    labels = {f"{part}_labels": np.zeros(8) for part in parts}
    for name in ("binarized_mnist", "fashion_mnist"):
        np.savez(tmp_path / f"{name}.npz", **dict.fromkeys(parts, images), **labels)

    def run(module, protocol, **options):
        asked = {"quick": True, "data_dir": tmp_path, **options}
        outcome = module.run(tmp_path / protocol, Options(protocols=(protocol,), **asked))
        return outcome, read_metrics(outcome.metrics).records

    return run


@slow
@pytest.mark.parametrize("row", [row.name for row in sound_rows() if row.length == 1])
def test_sound_rows_report_bounds(tiny_run, row):
    outcome, records = tiny_run(vae_mnist, "sound", only=(row,))
    assert {record.row for record in records} == {row}
    likelihoods = [r for r in records if r.metric.startswith("test log-likelihood")]
    assert len(likelihoods) == 2
    assert all(record.valid_bound and record.value < 0 for record in likelihoods)
    assert all(path.exists() for path in outcome.figures)


@slow
def test_resume_keeps_finished_rows(tiny_run, capsys):
    _, first = tiny_run(vae_mnist, "sound", only=("VAE",))
    capsys.readouterr()
    _, second = tiny_run(vae_mnist, "sound", only=("VAE", "IWAE"), resume=True)
    assert "1 fits to do" in capsys.readouterr().out
    assert second[: len(first)] == first
    assert {record.row for record in second} == {"VAE", "IWAE"}


def test_fewer_seeds_of_one_row_keep_those_of_others(tiny_run, monkeypatch, tmp_path):
    score = lambda seed: ({_autoencoders.LOG_LIKELIHOOD: -1.0 - seed}, 0.0)
    monkeypatch.setattr(
        _autoencoders.AutoencoderWork,
        "run",
        lambda work, row, seed, run, resume: _cells.computed_cell(
            work._path(row, seed), work.cell_settings(row, seed), run, lambda: score(seed)
        ),
    )
    tiny_run(vae_mnist, "sound", only=("VAE", "VAE, long"), num_seeds=3)
    cells = tmp_path / "sound" / "cells"
    (cells / "sound-vae-1.json").rename(cells / "sound-vae-1 (copy).json")
    _, records = tiny_run(vae_mnist, "sound", only=("IWAE",), num_seeds=1, resume=True)
    found = {record.row: (record.value, record.seeds) for record in records}
    assert found == {"VAE": (-2.0, 2), "VAE, long": (-2.0, 3), "IWAE": (-1.0, 1)}


@slow
def test_resume_runs_again_with_other_images(tiny_run, tmp_path, capsys):
    tiny_run(vae_mnist, "sound", only=("VAE",))
    stored = dict(np.load(tmp_path / "binarized_mnist.npz"))
    np.savez(tmp_path / "binarized_mnist.npz", **{**stored, "test": 1 - stored["test"]})
    capsys.readouterr()
    tiny_run(vae_mnist, "sound", only=("VAE",), resume=True)
    assert "1 fits to do" in capsys.readouterr().out


def test_rows_of_one_protocol_do_not_change_the_other(tiny_run, monkeypatch, tmp_path):
    found = Cell({_autoencoders.LOG_LIKELIHOOD: -1.0}, 0.0, None, "today")
    monkeypatch.setattr(_autoencoders.AutoencoderWork, "run", lambda *_, **__: found)
    options = Options(("paper", "sound"), quick=True, data_dir=tmp_path, only=("IWAE",))
    records = read_metrics(vae_mnist.run(tmp_path / "out", options).metrics).records
    assert {(record.protocol, record.row) for record in records} == {("sound", "IWAE")}
    with pytest.raises(InputError, match="--only IWAE: no row of --protocol paper"):
        tiny_run(vae_mnist, "paper", only=("IWAE",))


@slow
def test_unknown_rows_and_missing_files_are_refused(tiny_run, tmp_path):
    with pytest.raises(InputError, match="--only GAN: expected one of the rows VAE; VIS-5-10"):
        tiny_run(vae_mnist, "sound", only=("GAN",))
    with pytest.raises(InputError, match=r"--data-dir: .*nowhere is not a directory"):
        tiny_run(vae_mnist, "sound", data_dir=tmp_path / "nowhere")


@slow
def test_papers_estimate_is_never_called_a_log_likelihood(tiny_run):
    _, records = tiny_run(
        vae_fashion, "paper", only=tuple(row.name for row in rows_of("paper"))
    )
    surrogates = [r for r in records if r.metric == _autoencoders.PAPER_ESTIMATE]
    assert {r.row: r.paper for r in surrogates} == {
        "VAE": -125.57,
        "VIS-0-10": -120.53,
        "VIS-5-10, particle": -105.08,
        "VIS-5-10, Monte Carlo": -105.08,
    }
    assert not any(r.valid_bound for r in surrogates)
    claims = autoencoder_claims("clothes").claims(Numbers(records))
    assert {claim.verdict for claim in claims[1:]} == {"not run"}
    assert "The paper's estimator gives" in claims[0].why


def likelihood(row, value, stderr=0.1):
    return over_seeds(
        [value - stderr, value + stderr],
        experiment="vae-mnist",
        protocol="sound",
        row=row,
        metric="test log-likelihood",
        estimator="",
        seconds=1.0,
    )


def test_rows_are_compared_with_their_own_baseline():
    weighted = "VIS T=5, Gaussian, importance-weighted"
    records = [likelihood("VAE", -98.0), likelihood("IWAE", -96.0), likelihood(weighted, -93.5)]
    claims = autoencoder_claims("digits").claims(Numbers(records))
    # There is no unweighted row, and the weighted one does not replace it.
    verdicts = [claim.verdict for claim in claims]
    assert verdicts == ["not run"] * 2 + ["better"] + ["not run"] * 11 + ["better"]
    worse = autoencoder_claims("digits").claims(Numbers([likelihood(weighted, -94.2)]))
    assert worse[-1].verdict == "not confirmed"
    assert "-94.09 (UIVI)" in worse[-1].why


@pytest.mark.parametrize(
    ("how", "words"),
    [(", long", "for long"), (", Adam", "with Adam"), (", 20 latents", "20 latent values")],
)
def test_rows_are_compared_with_rows_trained_alike(how, words):
    alike = [likelihood(f"VAE{how}", -95.0), likelihood(f"VIS T=5, Gaussian{how}", -95.1)]
    others = [likelihood("VAE", -100.0), likelihood("VIS T=5, Gaussian", -96.0)]
    claims = autoencoder_claims("digits").claims(Numbers(others + alike))
    held = [claim for claim in claims if claim.text.startswith("VIS T=5, Gaussian: ")]
    found = {words in claim.text: claim.verdict for claim in held if claim.verdict != "not run"}
    assert found == {False: "better", True: "not confirmed"}


def test_larger_models_are_trained_alike_and_have_no_published_figures():
    rows = {row.name: row for row in sound_rows()}
    larger = {name: row for name, row in rows.items() if name.endswith(", 20 latents")}
    assert len(larger) == 4
    model = _autoencoders.AutoencoderWork.model
    for name, row in larger.items():
        same = rows[name.removesuffix(", 20 latents")]
        assert (row.num_steps, row.length, row.optimiser) == same[3:6]
        assert [model(None, one).num_latents for one in (row, same)] == [20, 10]
        assert row.published == {}
    found = [likelihood("VIS T=5, Gaussian", -100.0)]
    found.append(likelihood("VIS T=5, Gaussian, 20 latents", -90.0))
    claim = autoencoder_claims("digits").claims(Numbers(found))[-1]
    assert claim.verdict == "not confirmed"
    assert "20 latent values instead of ten, has -90" in claim.why


def test_smooth_rows_have_no_relus():
    rows = {row.name: row for row in sound_rows()}
    work = tiny_work("sound")
    smooth = {name: row for name, row in rows.items() if name.endswith(", smooth")}
    assert len(smooth) == 3
    for row in smooth.values():
        model = work.model(row)
        layers = model.encoder.loc, model.encoder.scale, model.decoder.layers
        assert {layer.activation for layer in layers} == {jax.nn.silu}
    row, same = rows["IWAE, smooth"], rows["IWAE"]
    assert row[2:7] == same[2:7]
    assert work.model(same).decoder.layers.activation is jax.nn.relu
    assert work.cell_settings(row, 0) != work.cell_settings(same, 0)


def test_rows_with_one_draw_differ_only_in_their_steps():
    rows = {row.name: row for row in sound_rows()}
    work = tiny_work("sound")
    plain = rows["VAE, one draw, smooth"]
    volume = rows["VIS T=1, change of variables, one draw, smooth"]
    for row in (plain, volume):
        _, loss = row.build(work.model(row))
        assert loss.num_particles == 1
        assert "S = 1" in work.training_description(row)
    assert work.num_iterations(plain) == work.num_iterations(volume)
    assert (plain.may_fold, volume.may_fold) == (False, True)
    guide, _ = volume.build(work.model(volume))
    assert guide.refinement.account.monotone


def test_claims_state_the_share_of_folds():
    how = ", one draw, smooth"
    ours = likelihood(f"VIS T=1, change of variables{how}", -94.0)
    folded = ours._replace(metric=_autoencoders.FOLDED, value=0.012)
    records = [likelihood(f"VAE{how}", -96.0), ours, folded]
    (claim,) = (
        claim
        for claim in autoencoder_claims("digits").claims(Numbers(records))
        if claim.text.startswith("VIS T=1, change of variables")
    )
    assert claim.verdict == "better"
    assert "a bound" not in claim.text
    assert "a bound except for folds: 1.2% of the draws" in claim.why


def test_long_rows_differ_only_in_length():
    rows = {row.name: row for row in sound_rows()}
    long = {name: row for name, row in rows.items() if name.endswith(", long")}
    assert len(long) == 6
    for name, row in long.items():
        assert row.num_passes == rows[name.removesuffix(", long")].num_passes


def tiny_work(protocol):
    split = ImageSplit(np.zeros((200, 784)), np.zeros(200))
    splits = ImageSplits(split, split, split)
    return _autoencoders.AutoencoderWork(protocol, TINY, splits, Path(), vae_mnist.DATASET)


def test_number_of_temperatures_is_part_of_the_settings():
    work = tiny_work("paper")
    cell = Cell({_autoencoders.ANNEALED: -1.0}, 0.0, None, "")
    for row, number in zip(rows_of("paper"), (4, 8, 8), strict=True):
        (record,) = work.records(row, [cell])
        assert f", {number} temperatures" in record.estimator
        fewer = row._replace(annealing=1)
        assert (work.cell_settings(row, 0) == work.cell_settings(fewer, 0)) == (number == 4)
        assert work.cell_settings(row, 1) == work.cell_settings(
            fewer, 1
        )  # which is not annealed


def test_estimated_time_includes_scoring():
    plain, larger = (row for row in sound_rows() if row.name in ("VAE", "VAE, 20 latents"))
    work = tiny_work("sound")
    number = len(work.splits.test.images)
    trained = work.num_iterations(plain) * _image_work.BATCH_SIZE * plain.num_passes
    # One round with enough draws for a covariance, then eight weighted draws.
    assert work.num_passes(plain, 1) - trained == number * (125 + 8)
    assert work.num_passes(larger, 1) - trained == number * (500 + 8)
    # The first seed is annealed: four chains, four temperatures, five leapfrogs of two passes.
    assert work.num_passes(plain, 0) - work.num_passes(plain, 1) == 2 * (4 * 4 * 5) * 2


def test_weight_decay_of_each_optimiser():
    """With zero gradients only weight decay is left, which applies to matrices alone."""
    work = tiny_work("sound")
    params = {"matrix": jnp.ones((20, 30)), "pixels": jnp.ones((784, 30)), "bias": jnp.ones(30)}
    moved = {}
    for optimiser in ("Muon", "Adam"):
        transformation = work.optimiser(sound_rows()[0]._replace(optimiser=optimiser))
        zeros = jax.tree.map(jnp.zeros_like, params)
        updates, _ = transformation.update(zeros, transformation.init(params), params)
        moved[optimiser] = {name: bool(jnp.any(update)) for name, update in updates.items()}
    assert moved["Adam"] == {"matrix": True, "pixels": True, "bias": False}
    assert moved["Muon"] == {"matrix": True, "pixels": False, "bias": False}


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_claims_mention_a_single_seed(num_seeds):
    rows = ("VAE", "VIS T=5, Gaussian")
    records = [likelihood(row, -95.0)._replace(seeds=num_seeds) for row in rows]
    claims = autoencoder_claims("digits").claims(Numbers(records))
    assert ("one seed" in claims[1].why) == ("one seed" in claims[-1].why) == (num_seeds == 1)


@slow
def test_parallel_fits_equal_sequential_fits(tiny_run, monkeypatch, tmp_path):
    # Worker processes have the original batch size, so there are as many images.
    monkeypatch.setattr(_image_work, "BATCH_SIZE", 128)
    images = np.random.RandomState(0).randint(0, 2, (128, 784))
    labels = {f"{part}_labels": np.zeros(128) for part in ("train", "valid", "test")}
    parts = dict.fromkeys(("train", "valid", "test"), images)
    np.savez(tmp_path / "binarized_mnist.npz", **parts, **labels)
    asked = {"only": ("VAE", "IWAE"), "num_seeds": 2}
    _, together = tiny_run(vae_mnist, "sound", num_jobs=2, **asked)
    assert {path.name for path in (tmp_path / "sound").glob("*")} >= {"cells", "logs"}
    _, in_turn = tiny_run(vae_mnist, "sound", **asked)
    is_number = lambda record: "seconds" not in record.metric
    find = lambda records: {(r.row, r.metric): r.value for r in records if is_number(r)}
    # One record is a difference of numbers near -542, which float32 stores to 6e-5.
    assert find(together) == pytest.approx(find(in_turn), rel=1e-4, abs=2e-4)
    # A row that is not requested now stays in the table.
    _, resumed = tiny_run(vae_mnist, "sound", resume=True, only=("VAE",), num_seeds=2)
    assert find(resumed) == pytest.approx(find(in_turn), rel=1e-6)


@slow
def test_unfinished_training_is_recorded(tiny_run, monkeypatch, capsys):
    def half(*args, num_iterations, **kwargs):
        return fit(*args, num_iterations=num_iterations // 2, **kwargs)

    monkeypatch.setattr(_image_work, "fit", half)
    _, records = tiny_run(vae_mnist, "sound", only=("VAE",))
    (part,) = [record for record in records if record.metric == _image_work.PART]
    assert (part.row, part.value) == ("VAE", 0.5)
    assert "VAE, seed 0: finished all 1 iterations" in capsys.readouterr().out


PARAMS = {
    name: np.ones(shape, np.float32)
    for name, shape in {
        "matrix": (2, 2),
        "pixels": (784, 2),
        "bias": (2,),
        "step_size": (),
    }.items()
}


def sound_optimiser():
    splits = ImageSplits(*[ImageSplit(np.zeros((128, 784)), np.zeros(128))] * 3)
    settings = TINY._replace(sound_epochs=1_000)
    work = _autoencoders.AutoencoderWork("sound", settings, splits, None, vae_mnist.DATASET)
    return work.optimiser(sound_rows()[0])


def test_one_huge_gradient_does_not_stop_the_optimiser():
    """Adam would remember it for many iterations."""
    optimiser = sound_optimiser()

    def last_update(spike):
        state = optimiser.init(PARAMS)
        for size in (1e3, spike, *[1e3] * 40):
            gradient = {name: size * value for name, value in PARAMS.items()}
            updates, state = optimiser.update(gradient, state, PARAMS)
        return updates

    plain, spiked = last_update(1e3), last_update(1e9)
    for name, update in plain.items():
        np.testing.assert_array_less(np.abs(update), 2.0 * np.abs(spiked[name]))


def test_weight_decay_applies_to_hidden_matrices_only():
    optimiser = sound_optimiser()
    nothing = {name: np.zeros_like(value) for name, value in PARAMS.items()}
    updates, _ = optimiser.update(nothing, optimiser.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["matrix"], -TINY.matrix_rate * TINY.weight_decay)
    assert not np.any(updates["pixels"])
    assert not np.any(updates["bias"])
    assert not np.any(updates["step_size"])
