import json
import math

import pytest

from relbo.experiments import Options, _metrics
from relbo.experiments._metrics import (
    MetricsError,
    Record,
    begin_run,
    markdown_table,
    mean_and_stderr,
    package_versions,
    read_metrics,
    source_commit,
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


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "funnel" / "metrics.json"
    records = [record("paper", paper=1.011), record("sound", value=None, stderr=None)]
    written = write_metrics(path, records, begin_run(Options(command="relbo reproduce funnel")))
    assert read_metrics(path) == written
    assert written.records == records
    assert not path.with_suffix(".json.tmp").exists()


def test_the_file_has_the_agreed_form(tmp_path):
    path = tmp_path / "metrics.json"
    write_metrics(path, [record()], begin_run(Options(command="relbo reproduce funnel")))
    content = json.loads(path.read_text())
    assert {"command", "commit", "versions", "date", "machine", "records"} <= content.keys()
    assert {"platform", "processor", "cpus", "memory_gb"} <= content["machine"].keys()
    assert content["command"] == "relbo reproduce funnel"
    assert content["records"] == [record()._asdict()]


def test_a_protocol_replaces_its_own_records_only(tmp_path):
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
def test_another_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.json: not a metrics file"):
        read_metrics(path)


def test_a_text_in_place_of_a_number_is_refused(tmp_path):
    path = tmp_path / "metrics.json"
    content = {"records": [record(value="<b>1</b>")._asdict()], "runs": {}}
    path.write_text(json.dumps(content))
    with pytest.raises(MetricsError, match="no number"):
        read_metrics(path)


def test_mean_and_stderr():
    assert mean_and_stderr([1.0, 2.0, 3.0]) == pytest.approx((2.0, math.sqrt(1 / 3)))
    assert mean_and_stderr([4.0]) == (4.0, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_none_and_not_an_average(bad):
    assert mean_and_stderr([1.0, bad]) == (None, None)


def test_the_table_has_the_papers_figure_in_its_own_column():
    text = markdown_table([record(paper=1.011), record(value=None, valid_bound=False)])
    header, _, first, second = text.splitlines()
    assert header.split("|")[5].strip() == "paper"
    assert first.split("|")[4].strip() == "-0.500 ± 0.010"
    assert first.split("|")[5].strip() == "1.011"
    assert second.split("|")[4].strip() == "not finite"
    assert second.split("|")[6].strip() == "no"
    assert len({len(line) for line in text.splitlines()}) == 1


def test_versions_are_named():
    assert {"relbo", "jax"} <= package_versions().keys()


def test_a_foreign_repository_is_not_taken_for_ours(monkeypatch):
    monkeypatch.setattr(_metrics, "_git", lambda *_: "/somewhere/else")
    assert source_commit() is None
