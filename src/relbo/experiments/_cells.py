"""Long runs in small pieces: what one row found with one seed, kept on disk."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from relbo._progress import counted

R = TypeVar("R", bound=Any)


class Cell(NamedTuple):
    """What one row found with one seed."""

    scores: dict[str, float]
    """By metric; one that belongs to another row is written `metric / row`."""
    seconds: float
    """Of training."""
    commit: str | None
    date: str


Compute = Callable[[], tuple[dict[str, float], float]]
"""Gives the scores and the seconds of training."""


def slug(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def computed_cell(
    path: Path, settings: dict[str, Any], run: dict[str, Any], compute: Compute
) -> Cell:
    """Computes a cell and keeps it.

    Args:
        path: where it is kept.
        settings: what the numbers depend on, but for the code.
        run: what is known of this run, see `begin_run`.
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
    """A cell that was computed before with the same settings, if there is one.

    Other code is no reason to compute it again, as it may have taken an hour: the cell says
    which commit it was computed at.
    """
    try:
        kept = json.loads(path.read_text())
        return Cell(**kept["cell"]) if kept["settings"] == settings else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a cell of relbo ({error}); remove it") from error


def run_in_turn(
    label: str,
    rows: Sequence[R],
    num_seeds: int,
    run_one: Callable[[R, int], Cell],
    write: Callable[[dict[str, list[Cell]]], None],
) -> None:
    """Every row with the first seed, then with the next, so that it can be stopped anywhere.

    Args:
        label: for the progress.
        rows: each has a `name`.
        num_seeds: of each row.
        run_one: runs a row with a seed.
        write: is handed all that was found so far after each, by the name of the row.
    """
    found: dict[str, list[Cell]] = {}
    with counted(label, num_seeds * len(rows)) as done:
        for seed in range(num_seeds):
            for row in rows:
                found.setdefault(row.name, []).append(run_one(row, seed))
                write(found)
                done(f"{row.name}, seed {seed}")
