"""Shows progress: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[..., None]
"""Takes the name of a phase, the fraction that is done, and a note."""


@contextmanager
def progress_bar(show: bool) -> Iterator[Report]:
    """Yields a function of `(phase, fraction, note)` that shows one bar per phase."""
    if not show or not _is_first_process():
        yield lambda *_: None
    elif sys.stderr.isatty():
        with _rich_bar() as report:
            yield report
    else:
        yield _plain_lines()


def _is_first_process() -> bool:
    """Returns whether this process shows progress for all."""
    jax = sys.modules.get("jax")  # without it there is one process
    return jax is None or jax.process_index() == 0


def duration(seconds: float) -> str:
    """Formats a number of seconds."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@contextmanager
def _rich_bar(memory: float = 30.0) -> Iterator[Report]:
    """Shows a bar that estimates the time left from the last `memory` seconds."""
    # Imported here because it is slow.
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
    """Prints a line when a phase ends, and every few seconds before."""
    last = {"time": time.monotonic()}
    begin: dict[str, tuple[float, float]] = {}

    def report(phase: str, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        # A resumed run starts with some work done.
        since, done = begin.setdefault(phase, (now, fraction))
        if fraction >= 1.0 or now - last["time"] > every:
            last["time"] = now
            line = f"relbo: {phase} {fraction:4.0%} {note}".rstrip()
            if done < fraction < 1.0:
                left = (now - since) * (1.0 - fraction) / (fraction - done)
                line += f", about {duration(left)} left"
            print(line, file=sys.stderr, flush=True)

    return report
