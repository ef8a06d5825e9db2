"""Given kernels, extensions and updates call back after each chunk, and may be stopped."""

import blackjax
import numpy as np
import pytest

import relbo
from callback_cases import Recorder, Y, model
from relbo.sampling import given_kernel, updating
from relbo.sampling.hamiltonian import chunk_length

CHUNK = chunk_length(1)


def test_a_given_kernel_reports_and_stops():
    recorder = Recorder(lambda state: state.phase == "sample" and state.fraction > 0)
    options = {"kernel": blackjax.nuts, "num_chains": 8, "progress": False}
    found = relbo.sample(0, model, (Y,), num_draws=8000, callback=recorder, **options)
    assert recorder.phases() == ["fit", "warm up", "sample"]
    assert found.num_draws == 2 * given_kernel.MAX_CHUNK * 8
    assert "The callback stopped the run." in found.notes
    late = relbo.sample(0, model, (Y,), num_draws=8000, seconds=1e-3, **options)
    assert late.num_draws == given_kernel.MAX_CHUNK * 8


@pytest.fixture(scope="module")
def posterior():
    return relbo.infer(0, model, (Y,), num_draws=640, num_chains=64, progress=False)


@pytest.mark.parametrize("spacing", [1.0, 4.0])
def test_extending_reports_and_stops(posterior, spacing):
    """What is added has the distance of the draws that were there."""
    recorder = Recorder(lambda state: state.fraction > 0)
    sparse = posterior.replaced(tuning=posterior.tuning._replace(spacing=spacing))
    found = sparse.extend(64_000, progress=False, callback=recorder)
    assert recorder.phases() == ["sample"]
    added = (found.num_draws - 640) // 64
    assert added == 2 * CHUNK / spacing
    assert "The callback stopped the run." in found.notes
    assert found.tuning.spacing == spacing


def test_an_update_reports_and_its_chains_stop(posterior, monkeypatch):
    recorder, longer = Recorder(), np.append(Y, [2.4, 1.9])
    posterior.update((longer,), progress=False, callback=recorder)
    assert recorder.phases() == ["update"]
    monkeypatch.setattr(updating, "MIN_SHARE", 1.1)  # weights are never enough
    recorder = Recorder()
    whole = posterior.update((longer,), progress=False, callback=recorder)
    assert recorder.phases() == ["update", "warm up", "sample"]
    assert whole.num_draws == 640
    many = posterior.extend(64_000, progress=False)
    first = Recorder(lambda state: len(first.states) == 1)
    stopped = many.update((longer,), progress=False, callback=first)
    assert stopped.num_draws < 64_000
    assert "The callback stopped the run." in stopped.notes
    late = many.update((longer,), seconds=1e-3, progress=False)
    assert late.num_draws < 64_000
