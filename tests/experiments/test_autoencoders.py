"""The experiments on images, very small."""

import numpy as np
import pytest

from relbo.experiments import Options, _autoencoders, vae_fashion, vae_mnist
from relbo.experiments._autoencoders_story import autoencoder_story
from relbo.experiments._metrics import read_metrics
from relbo.experiments._story import Numbers

pytestmark = pytest.mark.slow  # eight guides are compiled

TINY = _autoencoders.Settings(
    num_seeds=1,
    sound_epochs=1,
    paper_share=0.1,
    num_train=None,
    num_test=4,
    num_annealed=2,
    num_temperatures=4,
    num_draws=8,
)


@pytest.fixture
def tiny_run(monkeypatch, tmp_path):
    monkeypatch.setattr(_autoencoders, "QUICK", TINY)
    monkeypatch.setattr(_autoencoders, "BATCH_SIZE", 4)
    images = np.random.RandomState(0).randint(0, 2, (8, 784))
    parts = ("train", "valid", "test")
    labels = {f"{part}_labels": np.zeros(8) for part in parts}
    for name in ("binarized_mnist", "fashion_mnist"):
        np.savez(tmp_path / f"{name}.npz", **dict.fromkeys(parts, images), **labels)

    def run(module, protocol):
        options = Options(protocols=(protocol,), quick=True, data_dir=tmp_path)
        outcome = module.run(tmp_path / protocol, options)
        return outcome, read_metrics(outcome.metrics).records

    return run


def test_sound_rows_are_bounds(tiny_run):
    outcome, records = tiny_run(vae_mnist, "sound")
    assert [row.name for row in _autoencoders.sound_rows()] == list(
        dict.fromkeys(record.row for record in records)
    )
    assert all(record.valid_bound for record in records)
    assert all(record.value < 0 for record in records)
    assert len(outcome.figures) == 10
    assert all(path.exists() for path in outcome.figures)


def test_papers_estimate_is_never_called_a_log_likelihood(tiny_run):
    _, records = tiny_run(vae_fashion, "paper")
    surrogates = [r for r in records if r.metric == _autoencoders.PAPER_ESTIMATE]
    assert {r.row: r.paper for r in surrogates} == {
        "VAE": -125.57,
        "VIS-0-10": -120.53,
        "VIS-5-10, particle": -105.08,
        "VIS-5-10, Monte Carlo": -105.08,
    }
    assert not any(r.valid_bound for r in surrogates)
    claims = autoencoder_story("clothes").claims(Numbers(records))
    assert [claim.verdict for claim in claims][1:] == ["not run", "not run"]
    assert "By the paper's estimator" in claims[0].why
