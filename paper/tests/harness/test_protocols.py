"""Resumed runs, and the progress that is printed."""

import pytest

from relbo_paper.harness import metrics as _metrics
from relbo_paper.harness import progress as _progress
from relbo_paper.harness.experiments import Options
from relbo_paper.harness.metrics import MetricsError, Record, read_metrics
from relbo_paper.harness.protocols import run_protocols

BOTH = Options(("paper", "sound"), command="a test")


def record(protocol, value=1.0):
    return Record(
        "toy", protocol, "row", "metric", value, None, 1, "exactly", None, None, seconds=0.1
    )


class Toy:
    """Records which protocols are run, and can be interrupted before one."""

    def __init__(self, stop_at=None):
        self.ran = []
        self.stop_at = stop_at

    def __call__(self, protocol):
        if protocol == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append(protocol)
        return [record(protocol)], []


def ran(directory, options, stop_at=None):
    toy = Toy(stop_at)
    run_protocols(directory, options, toy)
    return toy.ran


def test_resume_keeps_what_was_done_before_an_interrupt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, BOTH, stop_at="sound")
    assert [r.protocol for r in read_metrics(tmp_path / "metrics.json").records] == ["paper"]
    assert ran(tmp_path, BOTH._replace(resume=True)) == ["sound"]
    assert ran(tmp_path, BOTH._replace(resume=True)) == []
    assert ran(tmp_path, BOTH) == ["paper", "sound"]


@pytest.mark.parametrize("change", [{"quick": True}, {"num_seeds": 7}])
def test_resume_runs_again_with_other_options(tmp_path, change):
    ran(tmp_path, BOTH)
    resumed = BOTH._replace(resume=True, **change)
    assert ran(tmp_path, resumed) == ["paper", "sound"]


@pytest.mark.parametrize("changed", ["source_fingerprint", "package_versions"])
def test_resume_runs_again_with_other_code(tmp_path, monkeypatch, changed):
    ran(tmp_path, BOTH)
    monkeypatch.setattr(_metrics, changed, lambda: {})
    assert ran(tmp_path, BOTH._replace(resume=True)) == ["paper", "sound"]


def test_figures_of_kept_protocols_are_returned(tmp_path):
    ran(tmp_path, BOTH)
    (tmp_path / "paper_loss.png").touch()
    outcome = run_protocols(tmp_path, BOTH._replace(resume=True), Toy())
    assert outcome.figures == (tmp_path / "paper_loss.png",)


def test_broken_file_is_reported_before_the_work(tmp_path):
    (tmp_path / "metrics.json").write_text("{")
    toy = Toy()
    with pytest.raises(MetricsError, match=r"metrics\.json"):
        run_protocols(tmp_path, BOTH, toy)
    assert toy.ran == []


def test_plain_lines_estimate_the_time_left(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 30.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    with _progress.counted("toy", 2) as done:
        done("first")
        done("second")
    assert capsys.readouterr().out.splitlines() == [
        "toy: first: 10 s, about 10 s left",
        "toy: second: 20 s",
    ]


def test_durations_in_seconds_minutes_and_hours():
    assert _progress.duration(3.4) == "3 s"
    assert _progress.duration(125) == "2 min"
    assert _progress.duration(9000) == "2.5 h"
