"""Plain lines of progress, for output that is not a terminal."""

from relbo import _progress


def test_resumed_phase_estimates_the_time_left_from_this_run_alone(monkeypatch, capsys):
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    report = _progress._plain_lines()
    report("fit", 0.5)
    report("fit", 0.6)
    assert capsys.readouterr().err.splitlines() == [
        "relbo: fit  50%",
        "relbo: fit  60%, about 80 s left",
    ]
