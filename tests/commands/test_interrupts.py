"""Ctrl-C at awkward moments, in processes of their own."""

import signal
import subprocess
import sys
import threading

import pytest

from relbo.cli import interruptible

BEGIN = """
import gc, os, signal, sys, time
from relbo.cli import interruptible

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

with interruptible("stopped; to continue: go on"):
    print("begun")
"""
MOMENTS = {
    "in plain code": "    interrupt()",
    "in a callback of the collector": "    gc.callbacks.append(interrupt); gc.collect()",
    "in a handler that catches everything": """
    try:
        interrupt()
    except BaseException:
        pass
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_ends_with_one_line(moment):
    code = f"{BEGIN}{MOMENTS[moment]}\nprint('not reached')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "stopped; to continue: go on\n"
    assert done.stdout == "begun\n"
    assert done.returncode == 1


def test_the_handler_of_the_caller_is_kept():
    before, handler = signal.getsignal(signal.SIGINT), signal.default_int_handler
    signal.signal(signal.SIGINT, handler)
    with interruptible("stopped"):
        assert signal.getsignal(signal.SIGINT) is not handler
    assert signal.getsignal(signal.SIGINT) is handler
    own = lambda *_: None
    signal.signal(signal.SIGINT, own)
    try:
        with interruptible("stopped"):
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_may_run_a_command():
    entered = []

    def work():
        with interruptible("stopped"):
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [True]


def test_drafts_of_a_killed_run_are_removed(tmp_path):
    from relbo.commands.output import exclusive

    stale = tmp_path / ".drafts-abc"
    stale.mkdir()
    (stale / "posterior.npz").write_text("half")
    with exclusive(tmp_path):
        assert not stale.exists()
