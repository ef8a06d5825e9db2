"""Runs fits in several processes at the same time, each on its own core.

A single fit of a small network uses several cores badly: its matrix products are small, and
everything between them runs on one core. Two fits on one core each are much faster than running
them in turn on two cores.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Run = Callable[..., Any]
Task = tuple[Any, ...]


@contextmanager
def in_processes(
    run: Run, shared: Any, tasks: Sequence[Task], num_jobs: int, logs: Path
) -> Iterator[Callable[[Task], Any]]:
    """Starts all tasks in their order, and yields a function that waits for one result.

    If a task fails, the running tasks are finished and the others are not started.

    Args:
        run: called as `run(shared, *task)` in one of the processes.
        shared: sent to each process once.
        tasks: small objects that can be pickled.
        num_jobs: number of processes; with more than there are cores, processes share them.
        logs: the directory where each process writes what it would have printed.
    """
    context = multiprocessing.get_context("spawn")
    cores: Any = context.Queue()
    for core in _cores(num_jobs):
        cores.put(core)
    logs.mkdir(parents=True, exist_ok=True)
    start = (cores, run, shared, logs)
    with ProcessPoolExecutor(num_jobs, context, _begin, start) as pool:
        results = {task: pool.submit(_work, task) for task in tasks}
        try:
            yield lambda task: results[task].result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cores(num_jobs: int) -> list[int | None]:
    """Returns one core per process; `None` where the system cannot pin a process."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * num_jobs
    known = sorted(os.sched_getaffinity(0))
    return [known[job % len(known)] for job in range(num_jobs)]


_worker_state: list[Any] = []
"""In a worker process: the arguments `run` and `shared` of `in_processes`."""


def _begin(cores: Any, run: Run, shared: Any, logs: Path) -> None:
    core = cores.get()
    if core is not None:
        # Before JAX starts, because JAX creates one thread per available core.
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    log = (logs / f"{os.getpid()}.txt").open("w", buffering=1)
    sys.stdout = sys.stderr = log
    _worker_state[:] = [run, shared]


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed, so that a resumed run is undisturbed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(task: Task) -> Any:
    run, shared = _worker_state
    return run(shared, *task)
