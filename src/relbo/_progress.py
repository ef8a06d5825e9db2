"""Shows progress: a bar on a terminal or in a notebook, lines of the logger elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

Report = Callable[..., Any]
"""Takes the name of a phase, the fraction that is done, a note, and numbers by name. Returns
whether the run should stop."""

logger = logging.getLogger("relbo")
"""Lines of progress, at level INFO."""


class RunState(NamedTuple):
    """What a `callback` is given after each chunk of a run.

    Example:
        >>> def callback(state):
        ...     print(state.phase, state.fraction, state.values)
        ...     return state.seconds > 60  # stops the run
    """

    phase: str
    """`"fit"`, `"warm up"`, `"sample"`; `"propose"` where a guide proposes draws, and
    `"update"` while draws are moved to new data."""
    fraction: float
    """The estimated fraction of the phase that is done."""
    seconds: float
    """Seconds since training or sampling started."""
    values: dict[str, float | int]
    """While a guide is trained: `iteration`, `loss` and `stderr`, the mean loss of the last
    iterations with its standard error, and later an estimate of `seconds_left`.
    Otherwise empty."""


Callback = Callable[[RunState], Any]
"""Stops the run by returning `True`; the result is what there is by then."""


@contextmanager
def progress_bar(show: bool, callback: Callback | None = None) -> Iterator[Report]:
    """Yields a function of `(phase, fraction, note, **values)` that shows one bar per phase.

    It returns whether the callback asks to stop.
    """
    started = time.monotonic()
    with _shown(show) as bar:

        def report(phase: str, fraction: float, note: str = "", **values: float | int) -> bool:
            bar(phase, fraction, note)
            if callback is None:
                return False
            seconds = time.monotonic() - started
            return bool(callback(RunState(phase, float(fraction), seconds, values)))

        yield report


def sticky(callback: Callback | None) -> Callback | None:
    """Returns a callback that keeps asking to stop once it has."""
    if callback is None:
        return None
    asked = []

    def ask(state: RunState) -> bool:
        if callback(state):
            asked.append(True)
        return bool(asked)

    return ask


@contextmanager
def _shown(show: bool) -> Iterator[Report]:
    if not show or not _is_first_process():
        yield lambda *_: None
    elif _is_notebook():
        yield _notebook_bar()
    elif sys.stderr.isatty():
        with _rich_bar() as report:
            yield report
    else:
        with _visible_logger():
            yield _plain_lines()


def _is_notebook() -> bool:
    """Whether the code runs in a kernel of Jupyter, whose outputs can be replaced."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _notebook_bar(every: float = 0.2) -> Report:
    """Shows one output that holds a bar for each phase and is replaced as they grow."""
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)
    rows: dict[str, str] = {}
    last = {"time": -every}

    def report(phase: str, fraction: float, note: str = "") -> None:
        rows[phase] = (
            f'<div><code>{escape(phase)}</code> <progress value="{fraction:.3f}" max="1">'
            f"</progress> {fraction:.0%} {escape(note)}</div>"
        )
        now = time.monotonic()
        if fraction >= 1.0 or now - last["time"] >= every:
            last["time"] = now
            handle.update(HTML("".join(rows.values())))

    return report


@contextmanager
def _visible_logger() -> Iterator[None]:
    """Shows the logger's lines on stderr, unless the user has configured logging."""
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("relbo: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # Packages that are imported meanwhile may configure the root logger.
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


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
    """Logs a line when a phase ends, and every few seconds before."""
    last = {"time": time.monotonic()}
    begin: dict[str, tuple[float, float]] = {}

    def report(phase: str, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        # A resumed run starts with some work done.
        since, done = begin.setdefault(phase, (now, fraction))
        if fraction >= 1.0 or now - last["time"] > every:
            last["time"] = now
            line = f"{phase} {fraction:4.0%} {note}".rstrip()
            if done < fraction < 1.0:
                left = (now - since) * (1.0 - fraction) / (fraction - done)
                line += f", about {duration(left)} left"
            logger.info(line)

    return report
