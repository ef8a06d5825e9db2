"""Worker processes; the image experiments test them with fits."""

import os
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, sys, time
from pathlib import Path
from relbo_paper.harness.workers import in_processes

def work(folder, number):
    (Path(folder) / f"{number}.new").write_text(str(os.getpid()))
    (Path(folder) / f"{number}.new").rename(Path(folder) / str(number))
    time.sleep(300)

if __name__ == "__main__":
    folder = sys.argv[1]
    with in_processes(work, folder, [(0,), (1,)], 2, Path(folder) / "logs") as result:
        result((0,))
"""


@pytest.mark.slow
def test_workers_exit_when_their_parent_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    parent = subprocess.Popen([sys.executable, str(program), str(tmp_path)])
    files = [tmp_path / "0", tmp_path / "1"]
    _wait(lambda: all(file.exists() for file in files))
    workers = [int(file.read_text()) for file in files]
    parent.kill()
    parent.wait()
    _wait(lambda: not any(map(_is_alive, workers)))


def _wait(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
