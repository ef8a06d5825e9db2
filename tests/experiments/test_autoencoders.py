"""The experiments on images, very small."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.data import ImageSplit, ImageSplits
from relbo.experiments import (
    InputError,
    Options,
    _autoencoders,
    _cells,
    _image_work,
    vae_fashion,
    vae_mnist,
)
from relbo.experiments._autoencoders_story import autoencoder_story
from relbo.experiments._cells import Cell
from relbo.experiments._image_rows import rows_of, sound_rows
from relbo.experiments._metrics import over_seeds, read_metrics
from relbo.experiments._story import Numbers
from relbo.training import fit

slow = pytest.mark.slow  # a guide is compiled in each

TINY = _autoencoders.Settings(
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
def test_sound_rows_are_bounds(tiny_run, row):
    outcome, records = tiny_run(vae_mnist, "sound", only=(row,))
    assert {record.row for record in records} == {row}
    likelihoods = [r for r in records if r.metric.startswith("test log-likelihood")]
    assert len(likelihoods) == 2
    assert all(record.valid_bound and record.value < 0 for record in likelihoods)
    assert all(path.exists() for path in outcome.figures)


@slow
def test_what_is_done_is_kept(tiny_run, capsys):
    _, first = tiny_run(vae_mnist, "sound", only=("VAE",))
    capsys.readouterr()
    _, second = tiny_run(vae_mnist, "sound", only=("VAE", "IWAE"), resume=True)
    assert "1 fits to do" in capsys.readouterr().out
    assert second[: len(first)] == first
    assert {record.row for record in second} == {"VAE", "IWAE"}


def test_fewer_seeds_of_one_row_leave_those_of_others(tiny_run, monkeypatch, tmp_path):
    score = lambda seed: ({_autoencoders.LOG_LIKELIHOOD: -1.0 - seed}, 0.0)
    monkeypatch.setattr(
        _autoencoders.Work,
        "run",
        lambda work, row, seed, run, resume: _cells.computed_cell(
            work._path(row, seed), work._decisive(row, seed), run, lambda: score(seed)
        ),
    )
    tiny_run(vae_mnist, "sound", only=("VAE", "VAE, long"), num_seeds=3)
    cells = tmp_path / "sound" / "cells"
    (cells / "sound-vae-1.json").rename(cells / "sound-vae-1 (copy).json")
    _, records = tiny_run(vae_mnist, "sound", only=("IWAE",), num_seeds=1, resume=True)
    found = {record.row: (record.value, record.seeds) for record in records}
    assert found == {"VAE": (-2.0, 2), "VAE, long": (-2.0, 3), "IWAE": (-1.0, 1)}


@slow
def test_other_images_are_another_run(tiny_run, tmp_path, capsys):
    tiny_run(vae_mnist, "sound", only=("VAE",))
    stored = dict(np.load(tmp_path / "binarized_mnist.npz"))
    np.savez(tmp_path / "binarized_mnist.npz", **{**stored, "test": 1 - stored["test"]})
    capsys.readouterr()
    tiny_run(vae_mnist, "sound", only=("VAE",), resume=True)
    assert "1 fits to do" in capsys.readouterr().out


def test_rows_of_one_protocol_leave_the_other_alone(tiny_run, monkeypatch, tmp_path):
    found = Cell({_autoencoders.LOG_LIKELIHOOD: -1.0}, 0.0, None, "today")
    monkeypatch.setattr(_autoencoders.Work, "run", lambda *_, **__: found)
    options = Options(("paper", "sound"), quick=True, data_dir=tmp_path, only=("IWAE",))
    records = read_metrics(vae_mnist.run(tmp_path / "out", options).metrics).records
    assert {(record.protocol, record.row) for record in records} == {("sound", "IWAE")}
    with pytest.raises(InputError, match="--only IWAE: no row of --protocol paper"):
        tiny_run(vae_mnist, "paper", only=("IWAE",))


@slow
def test_rows_and_files_that_are_not_there(tiny_run, tmp_path):
    with pytest.raises(InputError, match="--only GAN: there are the rows VAE; VIS-5-10"):
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
    claims = autoencoder_story("clothes").claims(Numbers(records))
    assert {claim.verdict for claim in claims[1:]} == {"not run"}
    assert "By the paper's estimator" in claims[0].why


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


def test_a_row_is_held_against_its_own_baseline():
    weighted = "VIS T=5, Gaussian, importance-weighted"
    records = [likelihood("VAE", -98.0), likelihood("IWAE", -96.0), likelihood(weighted, -93.5)]
    claims = autoencoder_story("digits").claims(Numbers(records))
    # There is no unweighted row, and the weighted one must not stand in for it.
    verdicts = [claim.verdict for claim in claims]
    assert verdicts == ["not run"] * 2 + ["better"] + ["not run"] * 11 + ["better"]
    worse = autoencoder_story("digits").claims(Numbers([likelihood(weighted, -94.2)]))
    assert worse[-1].verdict == "not confirmed"
    assert "-94.09 (UIVI)" in worse[-1].why


@pytest.mark.parametrize(
    ("how", "words"),
    [(", long", "for long"), (", Adam", "by Adam"), (", 20 latents", "20 latent values")],
)
def test_rows_are_held_against_those_trained_alike(how, words):
    alike = [likelihood(f"VAE{how}", -95.0), likelihood(f"VIS T=5, Gaussian{how}", -95.1)]
    others = [likelihood("VAE", -100.0), likelihood("VIS T=5, Gaussian", -96.0)]
    claims = autoencoder_story("digits").claims(Numbers(others + alike))
    held = [claim for claim in claims if claim.text.startswith("VIS T=5, Gaussian: ")]
    found = {words in claim.text: claim.verdict for claim in held if claim.verdict != "not run"}
    assert found == {False: "better", True: "not confirmed"}


def test_larger_models_are_trained_as_the_others_and_held_against_none_published():
    rows = {row.name: row for row in sound_rows()}
    larger = {name: row for name, row in rows.items() if name.endswith(", 20 latents")}
    assert len(larger) == 4
    model = _autoencoders.Work.model
    for name, row in larger.items():
        same = rows[name.removesuffix(", 20 latents")]
        assert (row.num_steps, row.length, row.optimiser) == same[3:6]
        assert [model(None, one).num_latents for one in (row, same)] == [20, 10]
        assert row.published == {}
    found = [likelihood("VIS T=5, Gaussian", -100.0)]
    found.append(likelihood("VIS T=5, Gaussian, 20 latents", -90.0))
    claim = autoencoder_story("digits").claims(Numbers(found))[-1]
    assert claim.verdict == "not confirmed"
    assert "20 latent values instead of ten, has -90" in claim.why


def test_smooth_rows_have_networks_without_relus():
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
    assert work._decisive(row, 0) != work._decisive(same, 0)


def test_rows_with_one_draw_differ_in_their_steps_alone():
    rows = {row.name: row for row in sound_rows()}
    work = tiny_work("sound")
    plain = rows["VAE, one draw, smooth"]
    volume = rows["VIS T=1, change of variables, one draw, smooth"]
    for row in (plain, volume):
        _, loss = row.build(work.model(row))
        assert loss.num_particles == 1
        assert "S = 1" in work.words(row)
    assert work.num_iterations(plain) == work.num_iterations(volume)
    assert (plain.may_fold, volume.may_fold) == (False, True)
    guide, _ = volume.build(work.model(volume))
    assert guide.refinement.entropy.monotone


def test_folds_are_told_beside_what_they_may_have_gained():
    how = ", one draw, smooth"
    ours = likelihood(f"VIS T=1, change of variables{how}", -94.0)
    folded = ours._replace(metric=_autoencoders.FOLDED, value=0.012)
    records = [likelihood(f"VAE{how}", -96.0), ours, folded]
    (claim,) = (
        claim
        for claim in autoencoder_story("digits").claims(Numbers(records))
        if claim.text.startswith("VIS T=1, change of variables")
    )
    assert claim.verdict == "better"
    assert "a bound" not in claim.text
    assert "A bound but for folds: 1.2% of the draws" in claim.why


def test_long_rows_are_trained_as_the_others_but_longer():
    rows = {row.name: row for row in sound_rows()}
    long = {name: row for name, row in rows.items() if name.endswith(", long")}
    assert len(long) == 6
    for name, row in long.items():
        assert row.num_passes == rows[name.removesuffix(", long")].num_passes


def tiny_work(protocol):
    split = ImageSplit(np.zeros((200, 784)), np.zeros(200))
    splits = ImageSplits(split, split, split)
    return _autoencoders.Work(protocol, TINY, splits, Path(), vae_mnist.DATASET)


def test_rows_with_more_temperatures_say_so_and_are_not_taken_for_those_with_fewer():
    work = tiny_work("paper")
    cell = Cell({_autoencoders.ANNEALED: -1.0}, 0.0, None, "")
    for row, number in zip(rows_of("paper"), (4, 8, 8), strict=True):
        (record,) = work.records(row, [cell])
        assert f", {number} temperatures" in record.estimator
        fewer = row._replace(annealing=1)
        assert (work._decisive(row, 0) == work._decisive(fewer, 0)) == (number == 4)
        assert work._decisive(row, 1) == work._decisive(fewer, 1)  # which is not annealed


def test_time_to_score_is_in_the_estimate():
    plain, larger = (row for row in sound_rows() if row.name in ("VAE", "VAE, 20 latents"))
    work = tiny_work("sound")
    number = len(work.splits.test.images)
    trained = work.num_iterations(plain) * _image_work.BATCH_SIZE * plain.num_passes
    # One round of draws enough for a covariance, then eight that count.
    assert work.num_passes(plain, 1) - trained == number * (125 + 8)
    assert work.num_passes(larger, 1) - trained == number * (500 + 8)
    # The first seed is annealed: four chains, four temperatures, five leapfrogs there and back.
    assert work.num_passes(plain, 0) - work.num_passes(plain, 1) == 2 * (4 * 4 * 5) * 2


def test_optimisers_move_what_they_say():
    """Each weight by itself: zero gradients leave the decay, which is the matrices' alone."""
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
def test_a_claim_says_that_it_rests_on_one_seed(num_seeds):
    rows = ("VAE", "VIS T=5, Gaussian")
    records = [likelihood(row, -95.0)._replace(seeds=num_seeds) for row in rows]
    claims = autoencoder_story("digits").claims(Numbers(records))
    assert ("one seed" in claims[1].why) == ("one seed" in claims[-1].why) == (num_seeds == 1)


@slow
def test_fits_at_once_find_what_fits_in_turn_find(tiny_run, monkeypatch, tmp_path):
    # Other processes know nothing of what is patched here; the number of images fits them.
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
    assert find(together) == pytest.approx(find(in_turn), rel=1e-4)
    # A row that is not asked for now stays in the table.
    _, resumed = tiny_run(vae_mnist, "sound", resume=True, only=("VAE",), num_seeds=2)
    assert find(resumed) == pytest.approx(find(in_turn), rel=1e-6)


@slow
def test_a_training_that_failed_is_not_passed_over(tiny_run, monkeypatch, capsys):
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
    work = _autoencoders.Work("sound", settings, splits, None, vae_mnist.DATASET)
    return work.optimiser(sound_rows()[0])


def test_one_runaway_minibatch_does_not_rule_the_optimiser():
    """Adam's memory of it is long."""
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


def test_weight_decay_is_for_hidden_matrices_alone():
    optimiser = sound_optimiser()
    nothing = {name: np.zeros_like(value) for name, value in PARAMS.items()}
    updates, _ = optimiser.update(nothing, optimiser.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["matrix"], -TINY.matrix_rate * TINY.weight_decay)
    assert not np.any(updates["pixels"])
    assert not np.any(updates["bias"])
    assert not np.any(updates["step_size"])
