"""Renders the page."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from relbo_paper.harness.claims import format_record
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
    return templates.get_template("page.html.j2").render(
        fits=results.fits,
        experiments=results.experiments,
        not_run=[
            (each.name, each.question, [c for c in each.claims if c.verdict == "not run"])
            for each in [*results.experiments, *results.not_run]
        ],
        not_run_names=[each.name for each in results.not_run],
        questions=answer_questions(results.experiments),
        runs=runs,
        environments=list_environments(runs),
    )
