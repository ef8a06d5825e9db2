"""Writes results so that runs do not overwrite each other and no draws are lost."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from relbo.commands import InputError, OutputError
from relbo.sampling import Posterior

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_DRAFTS = ".drafts-"


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Creates a directory and keeps other runs out of it.

    The lock file holds the process id. The operating system releases the lock when the process
    ends, so that the file of a dead process does not count.
    """
    path = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(_unwritable(directory, error)) from error
    with file:
        _lock(file, directory)
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        except OSError as error:
            raise InputError(_unwritable(directory, error)) from error
        # Left by a process that was killed; no other process writes here now.
        for drafts in directory.glob(f"{_DRAFTS}*"):
            shutil.rmtree(drafts, ignore_errors=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def written_at_once(directory: Path) -> Iterator[Path]:
    """Yields a directory for drafts, which replace the files of `directory` when complete."""
    with tempfile.TemporaryDirectory(prefix=_DRAFTS, dir=directory) as drafts:
        yield Path(drafts)
        for draft in Path(drafts).iterdir():
            draft.replace(directory / draft.name)


@contextlib.contextmanager
def rescued(posterior: Posterior, directory: Path) -> Iterator[None]:
    """Saves the draws in the temporary directory if `directory` cannot be written to."""
    try:
        yield
    except OSError as error:
        message = _unwritable(directory, error)
        try:
            place = posterior.save(Path(tempfile.mkdtemp(prefix="relbo-")) / "posterior.npz")
        except OSError as second:
            raise OutputError(
                f"{message}, nor could the draws be saved in {tempfile.gettempdir()} "
                f"({second.strerror})"
            ) from error
        raise OutputError(f"{message}; the draws are in {place}") from error


def _lock(file: TextIO, directory: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise InputError(
            f"--out {directory}: in use by another run (process {file.read()}); wait for it, "
            "or choose another directory"
        ) from error
    except OSError:
        # Some network file systems have no locks.
        return


def _unwritable(directory: Path, error: OSError) -> str:
    return f"--out {directory}: cannot be written to ({error.strerror or error})"
