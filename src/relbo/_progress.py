"""Progress that people see: a bar on a terminal, plain lines elsewhere, nothing if unwanted."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[..., None]
"""Takes the name of the phase, how much of it is done, and what to say besides."""


@contextmanager
def progress_bar(show: bool) -> Iterator[Report]:
    """A bar a phase; call what it gives with `(phase, fraction, note)`."""
    if not show:
        yield lambda *_: None
    elif sys.stderr.isatty():
        with _rich_bar() as report:
            yield report
    else:
        yield _plain_lines()


@contextmanager
def _rich_bar() -> Iterator[Report]:
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
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(phase: str, fraction: float, note: str = "") -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=1.0, note=note)
            bar.update(tasks[phase], completed=fraction, note=note)  # type: ignore[arg-type]

        yield report


def _plain_lines(every: float = 10.0) -> Report:
    """A line when a phase ends, and now and then on the way."""
    last = {"time": time.monotonic()}

    def report(phase: str, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        if fraction >= 1.0 or now - last["time"] > every:
            last["time"] = now
            print(
                f"relbo: {phase} {fraction:4.0%} {note}".rstrip(), file=sys.stderr, flush=True
            )

    return report
