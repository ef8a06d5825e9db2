"""What the report says of an experiment: its question, its figures, and verdicts by rule.

An experiment's module may have a `STORY`. Its rules see the records of a `metrics.json` and
nothing else, so that no result is ever written into the text.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from relbo.experiments import Protocol
from relbo.experiments._metrics import Record

Question = Literal["Q1", "Q2", "Q3"]
"""Of the paper: see `relbo.report`."""

Verdict = Literal["reproduced", "better", "not confirmed", "not run"]
"""What the numbers say of a claim.

`reproduced`: what the paper claims holds here. `better`: a sound protocol shows more than the
paper does. `not confirmed`: the numbers do not show it. `not run`: there are no numbers.
"""


class Claim(NamedTuple):
    """Something that an experiment can show or fail to show."""

    text: str
    verdict: Verdict
    why: str
    questions: tuple[Question, ...] = ()
    """Which of the paper's questions it bears on; the claim's being true means yes."""


class Numbers:
    """The records of one experiment, looked up by the beginnings of their names."""

    def __init__(self, records: Iterable[Record]):
        self.records = list(records)

    def all(self, protocol: Protocol, row: str = "", metric: str = "") -> list[Record]:
        return [
            record
            for record in self.records
            if record.protocol == protocol
            and record.row.startswith(row)
            and record.metric.startswith(metric)
        ]

    def first(self, protocol: Protocol, row: str = "", metric: str = "") -> Record | None:
        return next(iter(self.all(protocol, row, metric)), None)


class Story(NamedTuple):
    """What the report says of an experiment."""

    question: str
    """What the experiment asks, in a sentence."""
    claims: Callable[[Numbers], Sequence[Claim]]
    """Every claim, also those whose numbers are not there: these are `not run`."""
    figures: Mapping[str, str] = {}
    """What is to be seen in a figure, by the name of its file without `.svg`."""


class Comparison(NamedTuple):
    """One number against another, in the direction in which more is better."""

    ours: Record
    other: Record
    gain: float
    """How much better ours is; NaN where one of them is not finite."""
    stderr: float | None
    """Of the gain, as if the two were independent; `None` where neither has one."""

    @property
    def is_clear(self) -> bool:
        """Whether ours is better by more than two standard errors."""
        return self.gain > 2.0 * (self.stderr or 0.0)

    @property
    def words(self) -> str:
        return (
            f"{said(self.ours)} ({self.ours.row}) against {said(self.other)} "
            f"({self.other.row}), {self._outcome}{self._published}"
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
        size = f"by {with_noise(abs(self.gain), self.stderr)}"
        if self.stderr is not None and abs(self.gain) <= 2.0 * self.stderr:
            return f"{'better' if self.gain > 0 else 'worse'} {size}, within the noise"
        return f"{'better' if self.gain > 0 else 'worse'} {size}"


def compare(ours: Record, other: Record, *, lower_is_better: bool = False) -> Comparison:
    """Holds `ours` against `other`."""
    if ours.value is None or other.value is None:
        return Comparison(ours, other, math.nan, None)
    gain = ours.value - other.value
    errors = [record.stderr for record in (ours, other) if record.stderr is not None]
    stderr = math.hypot(*errors) if errors else None
    return Comparison(ours, other, -gain if lower_is_better else gain, stderr)


def caution(*records: Record) -> str:
    """A sentence, where a claim rests on one seed."""
    if all(record.seeds > 1 for record in records):
        return ""
    return " It is one seed: how much seeds differ is not known."


def best(records: Iterable[Record], *, lower_is_better: bool = False) -> Record | None:
    """The record with the best value; one that is not finite only where there is no other."""
    sign = -1.0 if lower_is_better else 1.0
    return max(
        records,
        key=lambda record: -math.inf if record.value is None else sign * record.value,
        default=None,
    )


def not_run(text: str, questions: tuple[Question, ...] = (), protocol: str = "") -> Claim:
    """The claim, where its numbers are not there."""
    rows = f"its rows of the {protocol} protocol are not there"
    missing = rows if protocol else "there are no numbers"
    return Claim(text, "not run", f"Not run: {missing}.", questions)


def said(record: Record) -> str:
    """A number with its standard error."""
    return "not finite" if record.value is None else with_noise(record.value, record.stderr)


def with_noise(value: float, stderr: float | None) -> str:
    """A number to two digits of its standard error."""
    if stderr is None:
        return figure(value)
    if stderr == 0 or not 1e-6 < stderr < 1e4:
        return f"{figure(value)} ± {figure(stderr)}"
    digits = max(0, 1 - math.floor(math.log10(stderr)))
    return f"{value:.{digits}f} ± {stderr:.{digits}f}"


def figure(value: float) -> str:
    """A number with as many digits as are worth reading."""
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.3f}"
    return f"{value:.2g}"
