"""Progress that people see: a bar on a terminal, plain lines elsewhere, nothing if unwanted."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[..., None]
"""Takes the name of the phase, how much of it is done, and what to say besides."""

Done = Callable[[str], None]
"""Takes the name of a piece of work that is done."""


@contextmanager
def progress_bar(show: bool) -> Iterator[Report]:
    """A bar a phase; call what it gives with `(phase, fraction, note)`."""
    if not show or not _is_first_process():
        yield lambda *_: None
    elif sys.stderr.isatty():
        with _rich_bar() as report:
            yield report
    else:
        yield _plain_lines()


@contextmanager
def counted(label: str, total: int) -> Iterator[Done]:
    """Progress in `total` pieces; call what it gives with a piece's name when that is done.

    A bar on a terminal; elsewhere a line a piece, with an estimate of the time left.
    """
    if not _is_first_process():
        yield lambda _: None
    elif sys.stderr.isatty():
        # A piece may take minutes.
        with _rich_bar(memory=24 * 3600.0) as report:
            report(label, 0.0)
            done = iter(range(1, total + 1))
            yield lambda name: report(label, next(done) / total, name)
    else:
        yield _plain_count(label, total)


def _is_first_process() -> bool:
    """Of a run of several processes one speaks for all."""
    jax = sys.modules.get("jax")  # who has not waited for it has one process
    return jax is None or jax.process_index() == 0


def _plain_count(label: str, total: int) -> Done:
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


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@contextmanager
def _rich_bar(memory: float = 30.0) -> Iterator[Report]:
    """A bar that estimates the time left from the last `memory` seconds."""
    # Only those who see it wait for its import.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, speed_estimate_period=memory) as bar:
        tasks: dict[str, int] = {}

        def report(phase: str, fraction: float, note: str = "") -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=1.0, note=note)
            bar.update(tasks[phase], completed=fraction, note=note)  # type: ignore[arg-type]

        yield report


def _plain_lines(every: float = 10.0) -> Report:
    """A line when a phase ends, and now and then on the way."""
    last = {"time": time.monotonic()}
    begin: dict[str, tuple[float, float]] = {}

    def report(phase: str, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        # What was done before is no work of this sitting: a run may have been resumed.
        since, done = begin.setdefault(phase, (now, fraction))
        if fraction >= 1.0 or now - last["time"] > every:
            last["time"] = now
            said = f"relbo: {phase} {fraction:4.0%} {note}".rstrip()
            if done < fraction < 1.0:
                left = (now - since) * (1.0 - fraction) / (fraction - done)
                said += f", about {duration(left)} left"
            print(said, file=sys.stderr, flush=True)

    return report
