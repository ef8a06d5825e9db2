"""Progress: bars in notebooks, lines of the logger elsewhere, callbacks that stop a run."""

import logging
import sys
from types import SimpleNamespace

import pytest

import relbo
from relbo import _progress


def test_resumed_phase_estimates_the_time_left_from_this_run_alone(monkeypatch, caplog):
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(clock))
    report = _progress._plain_lines()
    with caplog.at_level(logging.INFO, "relbo"):
        report("fit", 0.5)
        report("fit", 0.6)
    assert caplog.messages == ["fit  50%", "fit  60%, about 80 s left"]


def test_lines_are_visible_unless_logging_is_configured(monkeypatch, capsys):
    monkeypatch.setattr(_progress.sys.stderr, "isatty", lambda: False)
    with _progress.progress_bar(True) as report:
        report("fit", 1.0)
    assert capsys.readouterr().err == ""  # pytest has handlers of its own
    monkeypatch.setattr(_progress.logger, "hasHandlers", lambda: False)
    with _progress.progress_bar(True) as report:
        report("fit", 1.0)
        # A package that is imported meanwhile may configure the root logger.
        assert not _progress.logger.propagate
    assert "relbo: fit 100%" in capsys.readouterr().err
    assert _progress.logger.handlers == []
    assert _progress.logger.propagate


@pytest.fixture
def notebook(monkeypatch):
    """Stands for IPython in a kernel; lists what each of its outputs shows."""
    outputs = []

    def display(content, display_id):
        assert display_id is True
        outputs.append([content])
        return SimpleNamespace(update=outputs[-1].append)

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    shown = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return outputs


def test_a_notebook_has_one_output_that_is_replaced(notebook):
    with _progress.progress_bar(True) as report:
        for fraction in (0.0, 0.5, 1.0):
            report("fit", fraction, "loss < 3")
        report("sample", 1.0)
    assert len(notebook) == 1
    last = notebook[0][-1]
    assert last.count("<progress") == 2
    assert "loss &lt; 3" in last
    assert 'value="1.000"' in last


def test_a_terminal_of_ipython_is_no_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert not _progress._is_notebook()


def test_callbacks_see_the_state_and_may_stop():
    states = []

    def callback(state):
        states.append(state)
        return state.fraction > 0.5

    with _progress.progress_bar(False, callback) as report:
        assert not report("fit", 0.5, "note", loss=3.0)
        assert report("fit", 0.6)
    assert isinstance(states[0], relbo.RunState)
    assert states[0][:2] == ("fit", 0.5)
    assert states[0].values == {"loss": 3.0}
    assert states[1].seconds >= states[0].seconds


def test_a_sticky_callback_asks_again():
    ask = _progress.sticky(lambda state: state.phase == "fit")
    asked = [ask(relbo.RunState(phase, 0.0, 0.0, {})) for phase in ("warm up", "fit", "sample")]
    assert asked == [False, True, True]
    assert _progress.sticky(None) is None
