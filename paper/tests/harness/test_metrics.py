"""`metrics.json`: written, read, checked and printed."""

import json
import math
from pathlib import Path

import pytest

from relbo_paper.harness import metrics as _metrics
from relbo_paper.harness.experiments import Options
from relbo_paper.harness.metrics import (
    MetricsError,
    Record,
    begin_run,
    markdown_table,
    mean_and_stderr,
    package_versions,
    read_metrics,
    source_commit,
    source_fingerprint,
    write_metrics,
)


def record(protocol="sound", row="T=0", **changes):
    fields = {
        "experiment": "funnel",
        "protocol": protocol,
        "row": row,
        "metric": "ELBO",
        "value": -0.5,
        "stderr": 0.01,
        "seeds": 3,
        "estimator": "mean of 10 draws",
        "valid_bound": True,
        "paper": None,
        "seconds": 1.5,
    }
    return Record(**{**fields, **changes})


def test_reading_returns_what_was_written(tmp_path):
    path = tmp_path / "funnel" / "metrics.json"
    records = [record("paper", paper=1.011), record("sound", value=None, stderr=None)]
    written = write_metrics(path, records, begin_run(Options(command="relbo-paper run funnel")))
    assert read_metrics(path) == written
    assert written.records == records
    assert not path.with_suffix(".json.tmp").exists()


def test_file_has_the_documented_fields(tmp_path):
    path = tmp_path / "metrics.json"
    write_metrics(path, [record()], begin_run(Options(command="relbo-paper run funnel")))
    content = json.loads(path.read_text())
    assert {"command", "commit", "versions", "date", "machine", "records"} <= content.keys()
    assert {"platform", "processor", "cpus", "memory_gb"} <= content["machine"].keys()
    assert content["command"] == "relbo-paper run funnel"
    assert content["records"] == [record()._asdict()]


def test_protocol_replaces_only_its_own_records(tmp_path):
    path = tmp_path / "metrics.json"
    paper, old, new = record("paper"), record("sound", "old"), record("sound", "new")
    write_metrics(path, [paper, old], begin_run(Options(command="first")))
    metrics = write_metrics(path, [new], begin_run(Options(command="second")))
    assert metrics.records == [paper, new]
    assert metrics.head["command"] == "second"
    assert metrics.head["runs"]["paper"]["command"] == "first"
    assert metrics.head["runs"]["sound"]["command"] == "second"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"records": [{"row": 1}], "runs": {}}',
        '{"records": [], "runs": {"a": 1}}',
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path, text):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.json: not a metrics file"):
        read_metrics(path)


def test_text_instead_of_a_number_is_refused(tmp_path):
    path = tmp_path / "metrics.json"
    content = {"records": [record(value="<b>1</b>")._asdict()], "runs": {}}
    path.write_text(json.dumps(content))
    with pytest.raises(MetricsError, match="not a number"):
        read_metrics(path)


def test_mean_and_stderr_of_seeds():
    assert mean_and_stderr([1.0, 2.0, 3.0]) == pytest.approx((2.0, math.sqrt(1 / 3)))
    assert mean_and_stderr([4.0]) == (4.0, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_have_no_mean(bad):
    assert mean_and_stderr([1.0, bad]) == (None, None)


def test_table_has_a_column_for_the_papers_figure():
    text = markdown_table([record(paper=1.011), record(value=None, valid_bound=False)])
    header, _, first, second = text.splitlines()
    assert header.split("|")[5].strip() == "paper"
    assert first.split("|")[4].strip() == "-0.500 ± 0.010"
    assert first.split("|")[5].strip() == "1.011"
    assert second.split("|")[4].strip() == "not finite"
    assert second.split("|")[6].strip() == "no"
    assert len({len(line) for line in text.splitlines()}) == 1


def test_versions_include_relbo_and_jax():
    assert {"relbo", "jax"} <= package_versions().keys()


def test_commit_of_another_repository_is_not_used(monkeypatch):
    monkeypatch.setattr(_metrics, "_git", lambda *_: "/somewhere/else")
    assert source_commit() is None


def test_commit_is_that_of_this_clone(monkeypatch):
    root = Path(__file__).resolve().parents[3]
    monkeypatch.setattr(
        _metrics, "_git", lambda _, command, *__: str(root) if command == "rev-parse" else "abc"
    )
    assert source_commit() == "abc"


def test_fingerprint_covers_the_library_and_the_paper(monkeypatch, tmp_path):
    folders = {}
    for name in ("relbo", "relbo_paper"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "a.py").write_text("x = 1")
    monkeypatch.setattr(_metrics, "_package", folders.get)
    found = [source_fingerprint()]
    for folder in folders.values():
        (folder / "a.py").write_text("x = 2")
        found.append(source_fingerprint())
    assert len(set(found)) == 3
