"""Keeps the results of long runs on disk in small pieces, one file per row and seed."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from relbo_paper.harness.progress import counted

R = TypeVar("R", bound=Any)


class Cell(NamedTuple):
    """The results of one row with one seed."""

    scores: dict[str, float]
    """By metric; a metric that belongs to another row is written `metric / row`."""
    seconds: float
    """Training time."""
    commit: str | None
    date: str


Compute = Callable[[], tuple[dict[str, float], float]]
"""Returns the scores and the training time in seconds."""


def slug(name: str) -> str:
    """Turns a name into a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def computed_cell(
    path: Path, settings: dict[str, Any], run: dict[str, Any], compute: Compute
) -> Cell:
    """Computes a cell and writes it to `path`.

    Args:
        path: the file of the cell.
        settings: everything that the numbers depend on, except the code.
        run: the description of this run, see `begin_run`.
        compute: does the work.
    """
    scores, seconds = compute()
    cell = Cell(scores, round(seconds, 1), run["commit"], run["date"])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": settings, "cell": cell._asdict()}, indent=2)
    draft = path.with_suffix(".tmp")
    draft.write_text(text + "\n")
    draft.replace(path)
    return cell


def kept_cell(path: Path, settings: dict[str, Any]) -> Cell | None:
    """Reads a cell that was computed with the same settings; `None` if there is none.

    A change of the code does not invalidate a cell, because some take hours to compute: the
    cell records the commit that computed it.
    """
    try:
        kept = json.loads(path.read_text())
        return Cell(**kept["cell"]) if kept["settings"] == settings else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a cell of relbo-paper ({error}); remove it") from error


def run_in_turn(
    label: str,
    rows: Sequence[R],
    num_seeds: int,
    run_one: Callable[[R, int], Cell],
    write: Callable[[dict[str, list[Cell]]], None],
) -> None:
    """Runs all rows with the first seed, then all with the next, and so on.

    So a run that is stopped early has as many seeds of each row as possible.

    Args:
        label: the label of the progress bar.
        rows: each has a `name`.
        num_seeds: number of seeds of each row.
        run_one: runs a row with a seed.
        write: called after each cell with all cells found so far, by the name of the row.
    """
    found: dict[str, list[Cell]] = {}
    with counted(label, num_seeds * len(rows)) as done:
        for seed in range(num_seeds):
            for row in rows:
                found.setdefault(row.name, []).append(run_one(row, seed))
                write(found)
                done(f"{row.name}, seed {seed}")
