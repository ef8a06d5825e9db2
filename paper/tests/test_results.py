"""The kept results: readable, in the tables of the pages, and found again by a resumed run."""

import importlib.util
from pathlib import Path

import pytest

from relbo_paper.harness.experiments import EXPERIMENTS, Options
from relbo_paper.harness.metrics import read_metrics
from relbo_paper.images import autoencoders, classifier, vae_fashion, vae_mnist
from relbo_paper.images.work import loaded_images

PAPER = Path(__file__).resolve().parents[1]
RESULTS = PAPER / "results"


def test_kept_results_are_readable():
    paths = sorted(RESULTS.rglob("metrics.json"))
    assert len(paths) >= 8
    for path in paths:
        names = {record.experiment for record in read_metrics(path).records}
        assert names == {path.parent.name}
        assert names <= EXPERIMENTS.keys()


def test_tables_of_the_pages_agree_with_the_results():
    spec = importlib.util.spec_from_file_location("tables", PAPER / "scripts" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    for path in tables.PAGES:
        page = path.read_text()
        assert tables.filled(page, tables.KeptResults(RESULTS)) == page


def works(name, protocol):
    """The work of a full run, with its data set and its kept cells."""
    module = {"vae-mnist": vae_mnist, "vae-fashion": vae_fashion, "cvae": classifier}[name]
    dataset = vae_mnist.DATASET if name == "cvae" else module.DATASET
    splits = loaded_images(dataset.load, Options(), num_train=None, num_test=None)
    if name == "cvae":
        return classifier.ClassifierWork(protocol, classifier.FULL, splits, RESULTS / name)
    settings = autoencoders.FULL
    return autoencoders.AutoencoderWork(protocol, settings, splits, RESULTS / name, dataset)


@pytest.mark.parametrize("name", ["vae-mnist", "vae-fashion", "cvae"])
def test_cells_of_every_kept_row_are_found_again(name):
    """The settings of a cell contain texts, which a change of wording would invalidate."""
    records = read_metrics(RESULTS / name / "metrics.json").records
    for protocol in ("paper", "sound"):
        work = works(name, protocol)
        kept = {row.name: work.all_kept(row) for row in work.rows()}
        again = [r for row in work.rows() for r in work.records(row, kept[row.name])]
        values = {(r.row, r.metric): (r.value, r.seeds) for r in again if r.seeds}
        for record in records:
            if record.protocol == protocol and record.seeds:
                assert values[record.row, record.metric] == (record.value, record.seeds)
