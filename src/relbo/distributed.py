"""One program in several processes, on JAX's own distributed engine."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental import multihost_utils

PATIENCE = 60
"""Seconds after which a process that says nothing counts as lost."""
_NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    patience: int = PATIENCE,
) -> None:
    """Brings the processes of a run together; the first thing that each of them calls.

    `relbo.fit`, `relbo.sample` and the evaluators then use the devices of all processes, unless
    they are given a mesh. Every process makes the same calls with the same arguments. Where one
    ends before its time the others end too, with an error, within `patience`.

    Args:
        coordinator_address: `host:port` of process 0. Under Slurm and Open MPI JAX finds this
            and the next two by itself; elsewhere they may be set in the environment, as
            `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`.
        num_processes: how many there are.
        process_id: which of them this is, from 0.
        patience: seconds after which a process that says nothing counts as lost.
    """
    address, number, process = (os.environ.get(name) for name in _NAMES)
    try:
        jax.distributed.initialize(
            coordinator_address or address,
            _whole(_NAMES[1], number) if num_processes is None else num_processes,
            _whole(_NAMES[2], process) if process_id is None else process_id,
            heartbeat_timeout_seconds=patience,
            shutdown_timeout_seconds=patience,
        )
    except ValueError as error:
        raise ValueError(
            f"{error} Under Slurm or Open MPI start it with srun or mpirun; elsewhere set "
            f"{', '.join(_NAMES)}"
        ) from error


@contextlib.contextmanager
def quiet_unless_first(directory: Path) -> Iterator[Path]:
    """A place for results in which process 0 alone leaves some, and says so.

    The others write theirs where nobody looks, and only share the checkpoints.

    Args:
        directory: of the results; all processes must see the same one.

    Yields:
        The directory that this process may write to.
    """
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    if jax.process_index() == 0:
        # What is there now is read by all before any changes it.
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
            # Or process 0 would skip a fit that the others wait for.
            shutil.copytree(directory / "cells", place / "cells")
        multihost_utils.sync_global_devices("relbo results")
        with contextlib.redirect_stdout(nowhere):
            yield place


def leave() -> None:
    """Ends a process of a run that has failed, without waiting for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    # The usual way out waits for a farewell of those that are gone.
    os._exit(1)


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name}: expected a whole number, got {text!r}.") from error
