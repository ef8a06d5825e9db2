"""Several processes run one experiment and leave one set of files."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_experiment

import relbo
import relbo_paper

SCRIPT = Path(tiny_experiment.__file__).resolve()


def environment(**more):
    sources = (Path(package.__file__).resolve().parents[1] for package in (relbo, relbo_paper))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources)), **more}


@pytest.mark.slow
def test_two_processes_run_the_command_and_leave_one_set_of_files(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    for index in range(2):
        with open(tmp_path / f"output {index}", "w") as output:
            shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
            processes.append(
                subprocess.Popen(
                    [sys.executable, SCRIPT, tmp_path],
                    env=environment(JAX_PROCESS_ID=str(index), **shared),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        assert [process.wait(300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    loss = float((tmp_path / "tiny" / "metrics.json").read_text())
    assert loss == pytest.approx(float(tiny_experiment.trained().losses[-1]), 1e-3)
    assert "all is well" in (tmp_path / "output 0").read_text()
    assert "all is well" not in (tmp_path / "output 1").read_text()


def test_a_process_without_an_address_says_what_to_set(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        env=environment(),
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID" in done.stderr
