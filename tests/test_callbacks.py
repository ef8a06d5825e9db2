"""Callbacks after each chunk of `fit`, `sample` and `infer`, which may stop the run."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo

Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4])


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


class Recorder:
    """Keeps the states, and stops a run at the first that a condition accepts."""

    def __init__(self, condition=lambda state: False):
        self.states, self.condition = [], condition

    def __call__(self, state):
        self.states.append(state)
        return self.condition(state)

    def phases(self):
        return list(dict.fromkeys(state.phase for state in self.states))


def test_fit_reports_losses_and_stops():
    recorder = Recorder(lambda state: state.values.get("iteration", 0) >= 300)
    guide = relbo.AutoRefined(model, num_steps=2)
    options = {"guide": guide, "num_iterations": 1000, "progress": False}
    trained = relbo.fit(0, model, (Y,), callback=recorder, **options)
    assert trained.result == "stopped"
    assert trained.num_iterations == 300
    assert "stopped by the callback after 300 iterations" in trained.message
    assert {"iteration", "loss", "stderr"} == recorder.states[-1].values.keys()
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
