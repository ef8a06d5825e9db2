"""Runs one experiment in several processes: one of them writes the results."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental import multihost_utils


@contextlib.contextmanager
def quiet_unless_first(directory: Path) -> Iterator[Path]:
    """Lets only process 0 write results and print.

    The other processes write to a temporary directory and share the checkpoints only.

    Args:
        directory: the directory of the results, which all processes must see.

    Yields:
        The directory that this process may write to.
    """
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        # All processes read the directory before any of them changes it.
        multihost_utils.sync_global_devices("relbo results")
        yield directory
        return
    with tempfile.TemporaryDirectory() as hidden, open(os.devnull, "w") as nowhere:
        place = Path(hidden) / directory.name
        place.mkdir()
        (place / "checkpoints").symlink_to((directory / "checkpoints").resolve())
        if (directory / "metrics.json").exists():
            shutil.copy(directory / "metrics.json", place)
        if (directory / "cells").exists():
            # Otherwise process 0 would skip a fit that the others wait for.
            shutil.copytree(directory / "cells", place / "cells")
        multihost_utils.sync_global_devices("relbo results")
        with contextlib.redirect_stdout(nowhere):
            yield place


def leave() -> None:
    """Ends a failed process without waiting for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    # An ordinary exit would wait for processes that are gone.
    os._exit(1)
