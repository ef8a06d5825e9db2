"""What the report says about an experiment: its question, its claims and their verdicts.

The module of an experiment has a constant `CLAIMS`. Its rules see the records of a
`metrics.json` and nothing else, so that no result is written into the text by hand.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from relbo_paper.harness.experiments import Protocol
from relbo_paper.harness.metrics import Record

Question = Literal["Q1", "Q2", "Q3"]
"""One of the paper's three questions: see `relbo_paper.report`."""

Verdict = Literal["reproduced", "better", "not confirmed", "not run"]
"""What the numbers say about a claim.

`reproduced`: the paper's claim holds here. `better`: a sound protocol shows more than the paper
does. `not confirmed`: the numbers do not show it. `not run`: there are no numbers.
"""


class Claim(NamedTuple):
    """A statement that the numbers of an experiment may support."""

    text: str
    verdict: Verdict
    why: str
    questions: tuple[Question, ...] = ()
    """The paper's questions that it bears on; a claim that holds speaks for yes."""


class Numbers:
    """The records of one experiment, found by the beginnings of their names."""

    def __init__(self, records: Iterable[Record]):
        self.records = list(records)

    def all(self, protocol: Protocol, row: str = "", metric: str = "") -> list[Record]:
        """Returns the records whose row and metric begin with the given texts."""
        return [
            record
            for record in self.records
            if record.protocol == protocol
            and record.row.startswith(row)
            and record.metric.startswith(metric)
        ]

    def first(self, protocol: Protocol, row: str = "", metric: str = "") -> Record | None:
        """Returns the first of these records, `None` if there is none."""
        return next(iter(self.all(protocol, row, metric)), None)


class ExperimentClaims(NamedTuple):
    """The question of an experiment, and the rules that judge its claims."""

    question: str
    """The question of the experiment, in one sentence."""
    claims: Callable[[Numbers], Sequence[Claim]]
    """Returns every claim; claims without numbers are `not run`."""
    figures: Mapping[str, str] = {}
    """Descriptions of the figures, by file name without `.svg`."""


class Comparison(NamedTuple):
    """Two numbers compared; a positive gain means that ours is better."""

    ours: Record
    other: Record
    gain: float
    """NaN where one of the numbers is not finite."""
    stderr: float | None
    """Of the gain, as if the two were independent; `None` where neither has one."""

    @property
    def is_clear(self) -> bool:
        """Whether ours is better by more than two standard errors."""
        return self.gain > 2.0 * (self.stderr or 0.0)

    @property
    def words(self) -> str:
        return (
            f"{format_record(self.ours)} ({self.ours.row}) against "
            f"{format_record(self.other)} ({self.other.row}), {self._outcome}{self._published}"
        )

    @property
    def _published(self) -> str:
        if self.ours.paper is None or self.other.paper is None:
            return ""
        return f" (paper: {self.ours.paper:g} against {self.other.paper:g})"

    @property
    def _outcome(self) -> str:
        if math.isnan(self.gain):
            return "one of them is not finite"
        if self.gain == 0:
            return "no difference"
        size = f"by {format_value(abs(self.gain), self.stderr)}"
        if self.stderr is not None and abs(self.gain) <= 2.0 * self.stderr:
            return f"{'better' if self.gain > 0 else 'worse'} {size}, within the noise"
        return f"{'better' if self.gain > 0 else 'worse'} {size}"


def compare(ours: Record, other: Record, *, lower_is_better: bool = False) -> Comparison:
    """Compares `ours` with `other`."""
    if ours.value is None or other.value is None:
        return Comparison(ours, other, math.nan, None)
    gain = ours.value - other.value
    errors = [record.stderr for record in (ours, other) if record.stderr is not None]
    stderr = math.hypot(*errors) if errors else None
    return Comparison(ours, other, -gain if lower_is_better else gain, stderr)


def caution(*records: Record) -> str:
    """Returns a sentence of warning if a record has a single seed."""
    if all(record.seeds > 1 for record in records):
        return ""
    return " This rests on one seed, so the variation between seeds is unknown."


def best(records: Iterable[Record], *, lower_is_better: bool = False) -> Record | None:
    """Returns the record with the best value; finite values come first."""
    sign = -1.0 if lower_is_better else 1.0
    return max(
        records,
        key=lambda record: -math.inf if record.value is None else sign * record.value,
        default=None,
    )


def not_run(text: str, questions: tuple[Question, ...] = (), protocol: str = "") -> Claim:
    """Returns the claim without numbers."""
    rows = f"the rows of the {protocol} protocol are missing"
    missing = rows if protocol else "there are no numbers"
    return Claim(text, "not run", f"Not run: {missing}.", questions)


def format_record(record: Record) -> str:
    """Formats the value of a record with its standard error."""
    return "not finite" if record.value is None else format_value(record.value, record.stderr)


def format_value(value: float, stderr: float | None) -> str:
    """Formats a value to two significant digits of its standard error."""
    if stderr is None:
        return format_number(value)
    if stderr == 0 or not 1e-6 < stderr < 1e4:
        return f"{format_number(value)} ± {format_number(stderr)}"
    digits = max(0, 1 - math.floor(math.log10(stderr)))
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def format_number(value: float) -> str:
    """Formats a number with a sensible number of digits."""
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.3f}"
    return f"{value:.2g}"
