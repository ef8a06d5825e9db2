"""Runs one program in several processes, connected by JAX."""

import os

import jax

PATIENCE = 60
"""Seconds after which a silent process counts as lost."""


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
    try:
        jax.distributed.initialize(
            coordinator_address,
            _given_or_set(num_processes, "JAX_NUM_PROCESSES"),
            _given_or_set(process_id, "JAX_PROCESS_ID"),
            heartbeat_timeout_seconds=patience,
            shutdown_timeout_seconds=patience,
        )
    except ValueError as error:
        raise ValueError(
            f"{error} Under Slurm or Open MPI start it with srun or mpirun; elsewhere set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID"
        ) from error


def _given_or_set(number: int | None, name: str) -> int | None:
    """Returns a number, or else that of an environment variable, which JAX does not read."""
    text = os.environ.get(name)
    if number is not None or text is None:
        return number
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name}: expected an integer, got {text!r}.") from error
