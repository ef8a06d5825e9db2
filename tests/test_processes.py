"""Several processes: one run, one set of files, and a clear end where one of them is lost."""

import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import mesh_cases
from test_mesh import FOUR, HERE, TOLERANCE, environment

PATIENCE = 60
"""Seconds in which the others must have noticed: several times what they are told to wait."""
SHARED = ("chains", "test points")


def start(out, *names, number=2):
    """The processes of one run, with their words in files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for index in range(number):
        told = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(number)}
        with open(out / f"words {index}", "w") as words:
            processes.append(
                subprocess.Popen(
                    [sys.executable, HERE / "mesh_cases.py", out, *names],
                    env=environment(JAX_PROCESS_ID=str(index), **told),
                    stdout=words,
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
    for name, values in mesh_cases.arrays_of(fitted).items():
        np.testing.assert_allclose(found[name], values, **TOLERANCE)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    codes = finish(start(out, "own rows", *SHARED, f"resume 100 {out}/checkpoints"))
    assert codes == [0, 0], (out / "words 0").read_text()
    return out


@pytest.mark.slow
def test_two_processes_give_what_one_does(two):
    whole = mesh_cases.fit_rows()
    expected = {case: mesh_cases.CASES[case](None) for case in SHARED}
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
def test_one_process_speaks(two):
    assert "relbo: fit" in (two / "words 0").read_text()
    assert "relbo:" not in (two / "words 1").read_text()


@pytest.mark.slow
def test_two_processes_are_followed_by_one_or_by_four_devices(two, tmp_path):
    whole = mesh_cases.fit_rows()
    shutil.copytree(two / "checkpoints", tmp_path / "one")
    resumed = mesh_cases.fit_rows(checkpoint_dir=tmp_path / "one")
    # The first hundred are read, not run again.
    np.testing.assert_array_equal(
        resumed.losses[:100], np.load(two / "resumed 0.npz")["losses"]
    )
    assert_same(mesh_cases.arrays_of(resumed), whole)
    shutil.copytree(two / "checkpoints", tmp_path / "four")
    script = [sys.executable, HERE / "mesh_cases.py", tmp_path, f"resume 200 {tmp_path}/four"]
    subprocess.run(script, env=environment(XLA_FLAGS=FOUR), check=True, timeout=200)
    assert_same(np.load(tmp_path / "resumed 0.npz"), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "blow"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["first", "second", "silent"],
)
def test_a_lost_process_ends_the_others_and_the_run_goes_on(victim, blow, tmp_path):
    directory = tmp_path / "checkpoints"
    processes = start(tmp_path, f"resume 1000000 {directory}")
    try:
        deadline = time.monotonic() + 300
        while not list(directory.glob("[1-9]*00/_CHECKPOINT_METADATA")):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes)
            time.sleep(0.1)
        processes[victim].send_signal(blow)
        assert processes[1 - victim].wait(PATIENCE) != 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    words = (tmp_path / f"words {1 - victim}").read_text()
    # The second is JAX's own, where it hears of it before the computation does.
    assert "another process of this run has ended" in words or "another task died" in words
    kept = max(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    resumed = mesh_cases.fit_rows(checkpoint_dir=directory, num_iterations=kept + 100)
    whole = mesh_cases.fit_rows(num_iterations=kept + 100)
    assert_same(mesh_cases.arrays_of(resumed), whole)


@pytest.mark.slow
def test_the_command_runs_in_two_processes_and_leaves_one_set_of_files(tmp_path):
    assert finish(start(tmp_path, "reproduce")) == [0, 0]
    loss = float((tmp_path / "tiny" / "metrics.json").read_text())
    assert loss == pytest.approx(
        float(mesh_cases.fit_rows(num_iterations=100).losses[-1]), 1e-3
    )
    assert "all is well" in (tmp_path / "words 0").read_text()
    assert "all is well" not in (tmp_path / "words 1").read_text()


def test_a_process_that_is_not_told_who_it_is_says_so(tmp_path):
    script = [sys.executable, HERE / "mesh_cases.py", tmp_path, "reproduce"]
    done = subprocess.run(
        script, env=environment(), timeout=100, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID" in done.stderr
