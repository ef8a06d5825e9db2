"""Shows the progress of an experiment: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Done = Callable[[str], None]
"""Called with the name of each piece of work that is finished."""


@contextmanager
def counted(label: str, total: int) -> Iterator[Done]:
    """Shows progress in `total` pieces of work.

    On a terminal it is a bar, elsewhere one line per piece with an estimate of the time left.

    Yields:
        A function to call with the name of each finished piece.
    """
    if not _is_first_process():
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar(label, total) as done:
            yield done
    else:
        yield _lines(label, total)


def duration(seconds: float) -> str:
    """Formats a number of seconds as seconds, minutes or hours."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _is_first_process() -> bool:
    jax = sys.modules.get("jax")  # a program that has not imported JAX is a single process
    return jax is None or jax.process_index() == 0


@contextmanager
def _bar(label: str, total: int) -> Iterator[Done]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[name]}"),
    )
    # A piece may take minutes, so the speed is estimated over a whole day.
    with Progress(
        *columns, console=Console(stderr=True), speed_estimate_period=24 * 3600.0
    ) as bar:
        task = bar.add_task(label, total=total, name="")
        yield lambda name: bar.update(task, advance=1, name=name)


def _lines(label: str, total: int) -> Done:
    begin = last = time.monotonic()
    number = 0

    def done(name: str) -> None:
        nonlocal last, number
        now, number = time.monotonic(), number + 1
        left = (now - begin) / number * (total - number)
        estimate = f", about {duration(left)} left" if number < total else ""
        print(f"{label}: {name}: {duration(now - last)}{estimate}", flush=True)
        last = now

    return done
