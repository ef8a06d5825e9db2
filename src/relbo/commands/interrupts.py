"""Ends a command on Ctrl-C with one line, whatever it is doing."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SHOW_CURSOR = "\x1b[?25h"
"""Progress bars hide the cursor of a terminal."""
_EXIT_CODE = 1


@contextlib.contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ends the process on Ctrl-C, with a message and without a traceback.

    An exception is not enough: Python ignores one that is raised in a callback of the garbage
    collector, of which JAX has one, and extensions crash if one is raised while they are
    imported or while JAX shuts down. Commands write files in one step, so that nothing is left
    half written.

    Args:
        message: one line that says how to continue.
    """

    def end(*_: Any) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        begin = f"{_SHOW_CURSOR}\n" if sys.stderr.isatty() else ""
        os.write(2, f"{begin}{message}\n".encode())
        os._exit(_EXIT_CODE)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # the caller has its own way
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
