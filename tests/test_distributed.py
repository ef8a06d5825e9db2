"""Several processes: one run, one set of files, and a clear error if one of them is lost."""

import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import device_cases
import relbo
from test_devices import FOUR, HERE, TOLERANCE, environment

PATIENCE = 60
"""Seconds within which the others must end: several times their own patience."""
SHARED = ("chains", "test points")


def start(out, *names, number=2):
    """Starts the processes of one run, with their output in files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for index in range(number):
        names_of_run = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(number)}
        with open(out / f"output {index}", "w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, HERE / "device_cases.py", out, *names],
                    env=environment(JAX_PROCESS_ID=str(index), **names_of_run),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def finish(processes, timeout=300):
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def assert_same(found, fitted):
    for name, values in device_cases.arrays_of(fitted).items():
        np.testing.assert_allclose(found[name], values, **TOLERANCE)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    codes = finish(start(out, "own rows", *SHARED, f"resume 100 {out}/checkpoints"))
    assert codes == [0, 0], (out / "output 0").read_text()
    return out


@pytest.mark.slow
def test_two_processes_give_what_one_gives(two):
    whole = device_cases.fit_rows()
    expected = {case: device_cases.CASES[case](None) for case in SHARED}
    for index in range(2):
        assert_same(np.load(two / f"own rows {index}.npz"), whole)
        for case, values in expected.items():
            found = np.load(two / f"{case} {index}.npz")
            for name in values:
                np.testing.assert_allclose(found[name], values[name], **TOLERANCE)


@pytest.mark.slow
def test_each_process_reads_its_own_rows(two):
    sizes = [int(np.load(two / f"own rows {index}.npz")["size"]) for index in range(2)]
    assert sizes == [100 * 8, 100 * 8]  # of minibatches of 16


@pytest.mark.slow
def test_only_the_first_process_shows_progress(two):
    assert "relbo: fit" in (two / "output 0").read_text()
    assert "relbo:" not in (two / "output 1").read_text()


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_by_one_or_by_four_devices(two, tmp_path):
    whole = device_cases.fit_rows()
    shutil.copytree(two / "checkpoints", tmp_path / "one")
    resumed = device_cases.fit_rows(checkpoint_dir=tmp_path / "one")
    # The first 100 iterations are read, not run again.
    np.testing.assert_array_equal(
        resumed.seed_losses[:, :100], np.load(two / "resumed 0.npz")["losses"]
    )
    assert_same(device_cases.arrays_of(resumed), whole)
    shutil.copytree(two / "checkpoints", tmp_path / "four")
    script = [sys.executable, HERE / "device_cases.py", tmp_path, f"resume 200 {tmp_path}/four"]
    subprocess.run(script, env=environment(XLA_FLAGS=FOUR), check=True, timeout=200)
    assert_same(np.load(tmp_path / "resumed 0.npz"), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "stop_signal"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["first", "second", "silent"],
)
def test_a_lost_process_ends_the_others_and_the_run_can_be_resumed(
    victim, stop_signal, tmp_path
):
    directory = tmp_path / "checkpoints"
    processes = start(tmp_path, f"resume 1000000 {directory}")
    try:
        deadline = time.monotonic() + 300
        while not list(directory.glob("[1-9]*00/_CHECKPOINT_METADATA")):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes)
            time.sleep(0.1)
        processes[victim].send_signal(stop_signal)
        assert processes[1 - victim].wait(PATIENCE) != 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    output = (tmp_path / f"output {1 - victim}").read_text()
    # The second message is JAX's own, if it notices first.
    assert "another process of this run has ended" in output or "another task died" in output
    kept = max(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    resumed = device_cases.fit_rows(checkpoint_dir=directory, num_iterations=kept + 100)
    whole = device_cases.fit_rows(num_iterations=kept + 100)
    assert_same(device_cases.arrays_of(resumed), whole)


def test_an_incomplete_environment_is_named(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES: expected an integer, got 'two'"):
        relbo.distributed.initialize()
