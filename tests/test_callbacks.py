"""Callbacks after each chunk of `fit`, `sample` and `infer`, which may stop the run."""

import relbo
from callback_cases import Recorder, Y, model


def test_fit_reports_losses_and_stops():
    recorder = Recorder(lambda state: state.values.get("iteration", 0) >= 300)
    guide = relbo.AutoRefined(model, num_steps=2)
    options = {"guide": guide, "num_iterations": 1000, "progress": False}
    trained = relbo.fit(0, model, (Y,), callback=recorder, **options)
    assert trained.result == "stopped"
    assert trained.num_iterations == 300
    assert "stopped by the callback after 300 iterations" in trained.message
    assert {"iteration", "loss", "stderr", "seconds_left"} == recorder.states[-1].values.keys()
    shown = trained._repr_html_()
    assert "stopped" in shown
    assert "AutoRefined(model, base=AutoBentNormal" in shown


def test_infer_goes_through_its_phases():
    recorder = Recorder()
    relbo.infer(0, model, (Y,), num_draws=1600, progress=False, callback=recorder)
    assert recorder.phases() == ["fit", "warm up", "sample"]
    assert recorder.states[-1].fraction == 1.0


def test_sampling_stops_and_says_so():
    recorder = Recorder(lambda state: state.phase == "sample" and state.fraction > 0)
    found = relbo.sample(
        0, model, (Y,), num_draws=64_000, num_chains=64, progress=False, callback=recorder
    )
    assert 0 < found.num_draws < 64_000
    assert "The callback stopped the run." in found.notes
