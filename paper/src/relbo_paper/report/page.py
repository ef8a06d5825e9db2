"""Renders the page."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from relbo_paper.harness.claims import Claim, format_record
from relbo_paper.report.questions import answer_questions
from relbo_paper.report.results import Results, read_results
from relbo_paper.report.runs import list_environments, list_runs


def write_report(directory: Path) -> Path:
    """Reads the results in `directory` and writes `report.html` beside them.

    Raises:
        ReportError: if there are no results, or a file is broken.
    """
    page = render_page(read_results(directory))
    path = directory / "report.html"
    # Replaced in one step, so that a reader never sees half a page.
    draft = path.with_suffix(".html.tmp")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)
    return path


def render_page(results: Results) -> str:
    """Renders one page that needs no other file."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["with_stderr"] = format_record
    runs = list_runs(results.experiments)
    not_run = _not_run(results)
    return templates.get_template("page.html.j2").render(
        fits=results.fits,
        experiments=results.experiments,
        not_run=not_run,
        command_for_rest=" ".join(
            ["relbo-paper run", *(name for name, _, _ in not_run), "--protocol both --resume"]
        ),
        questions=[q for q in answer_questions(results.experiments) if q.claims],
        runs=runs,
        environments=list_environments(runs),
    )


def _not_run(results: Results) -> list[tuple[str, str, list[Claim]]]:
    """Lists what was not run, or in part: the name, the question and the untested claims."""
    rows = [
        (each.name, each.question, [c for c in each.claims if c.verdict == "not run"])
        for each in [*results.experiments, *results.not_run]
    ]
    missing = {each.name for each in results.not_run}
    return [row for row in rows if row[2] or row[0] in missing]
