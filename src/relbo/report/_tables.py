"""Tables that can be sorted by any column."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relbo.experiments._metrics import Record
from relbo.experiments._story import said
from relbo.report._html import Content, Markup, element, joined


class Cell(NamedTuple):
    """What a cell shows, and the number to sort it by where it is one."""

    content: Content
    number: float | None = None
    is_number: bool = False


def sortable_table(caption: str, header: Sequence[str], rows: Iterable[list[Cell]]) -> Markup:
    """A table whose headings are buttons; it scrolls by itself on a narrow screen."""
    rows = list(rows)
    numeric = [any(row[column].is_number for row in rows) for column in range(len(header))]
    head = element("tr", *(_heading(*pair) for pair in zip(header, numeric, strict=True)))
    body = [element("tr", *(_cell(cell, i == 0) for i, cell in enumerate(row))) for row in rows]
    table = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
        class_="sortable",
    )
    return element(
        "div", table, class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def _heading(text: str, is_number: bool) -> Markup:
    button = element("button", text, type="button")
    return element("th", button, scope="col", aria_sort="none", class_=_class(is_number))


def _cell(cell: Cell, is_first: bool) -> Markup:
    value = None if cell.number is None else repr(cell.number)
    if is_first:
        return element("th", cell.content, scope="row")
    return element("td", cell.content, data_value=value, class_=_class(cell.is_number))


def _class(is_number: bool) -> str | None:
    return "number" if is_number else None


def records_table(caption: str, records: Sequence[Record], prefix: str) -> Markup:
    """Every number with all that one must know to read it.

    Estimators take many words and are shared by many rows: they are notes below the table.
    `prefix` keeps the notes' identifiers apart from those of other tables.
    """
    estimators = list(dict.fromkeys(record.estimator for record in records))
    header = (
        "row",
        "metric",
        "ours ± standard error",
        "paper",
        "lower bound?",
        "estimator",
        "seeds",
        "seconds",
    )
    rows = [
        _record_row(record, estimators.index(record.estimator) + 1, prefix)
        for record in records
    ]
    notes = [
        element("li", estimator, id=f"{prefix}-note-{number}")
        for number, estimator in enumerate(estimators, start=1)
    ]
    return joined(
        sortable_table(caption, header, rows),
        element(
            "details",
            element("summary", "Estimators"),
            element("ol", *notes),
            class_="notes",
        ),
    )


def _record_row(record: Record, note: int, prefix: str) -> list[Cell]:
    paper = None if record.paper is None else [f"{record.paper:g} ", _small("paper")]
    link = element("a", str(note), href=f"#{prefix}-note-{note}", title=record.estimator)
    return [
        Cell(record.row),
        Cell(element("div", record.metric, class_="name-cell")),
        Cell(said(record), record.value, is_number=True),
        Cell(paper, record.paper, is_number=True),
        Cell({True: "yes", False: "no", None: "-"}[record.valid_bound]),
        Cell(link, note, is_number=True),
        Cell(str(record.seeds), record.seeds, is_number=True),
        Cell(f"{record.seconds:.1f}", record.seconds, is_number=True),
    ]


def _small(text: str) -> Markup:
    return element("small", text)
