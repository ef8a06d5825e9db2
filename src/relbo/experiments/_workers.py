"""Fits in several processes at once, each on a core of its own.

One fit of a small network uses several cores badly: its products are small, and what lies
between them runs on one core. Two fits on a core each take far less time than one after the
other on two.
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
    """Begins all tasks, in their order; gives a function that waits for the result of one.

    Where one fails, those that have begun are seen to their end and the others are left.

    Args:
        run: is called as `run(shared, *task)` in one of the processes.
        shared: handed to each process once.
        tasks: small things that can be pickled.
        num_jobs: how many processes; more than there are cores would share them.
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
    """One for each process in turn; `None` where the system cannot tell or hold them."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * num_jobs
    known = sorted(os.sched_getaffinity(0))
    return [known[job % len(known)] for job in range(num_jobs)]


_here: list[Any] = []
"""In a worker: what `in_processes` was called with."""


def _begin(cores: Any, run: Run, shared: Any, logs: Path) -> None:
    core = cores.get()
    if core is not None:
        # Before JAX starts: it makes as many threads as there are cores to be had.
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    log = (logs / f"{os.getpid()}.txt").open("w", buffering=1)
    sys.stdout = sys.stderr = log
    _here[:] = [run, shared]


def _leave_with_parent() -> None:
    """One that was killed has no time to tell; whoever resumes would find us still at it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(task: Task) -> Any:
    run, shared = _here
    return run(shared, *task)
