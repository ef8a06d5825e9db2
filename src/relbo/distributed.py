"""Runs one program in several processes, connected by JAX."""

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
"""Seconds after which a silent process counts as lost."""
_NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    patience: int = PATIENCE,
) -> None:
    """Connects the processes of a run; each process calls it before anything else.

    `relbo.fit`, `relbo.sample` and the evaluators then use the devices of all processes, unless
    they are given a mesh. Every process makes the same calls with the same arguments. If one
    ends too early, the others end with an error within `patience` seconds.

    Args:
        coordinator_address: `host:port` of process 0. Under Slurm and Open MPI JAX finds this
            and the next two by itself; elsewhere they can be set in the environment, as
            `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`.
        num_processes: number of processes.
        process_id: number of this process, starting at 0.
        patience: seconds after which a silent process counts as lost.
    """
    address, number, process = (os.environ.get(name) for name in _NAMES)
    try:
        jax.distributed.initialize(
            coordinator_address or address,
            _integer(_NAMES[1], number) if num_processes is None else num_processes,
            _integer(_NAMES[2], process) if process_id is None else process_id,
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


def _integer(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name}: expected an integer, got {text!r}.") from error
