"""The page as a whole."""

from importlib.resources import files
from pathlib import Path

from relbo.experiments._story import Claim
from relbo.report._diagrams import diagrams_section
from relbo.report._figures import figure_block
from relbo.report._html import Markup, element, joined, void
from relbo.report._provenance import is_quick, provenance_section
from relbo.report._questions import questions_section, verdict_badge
from relbo.report._reading import Fitted, Ran, Results, read_results
from relbo.report._tables import records_table

_PROTOCOLS = {
    "sound": "Sound protocol: without the published procedure's flaws",
    "paper": "Paper's protocol: as published",
}


def write_report(directory: Path) -> Path:
    """Reads the results in `directory` and writes `report.html` beside them.

    Raises:
        ReportError: where there is nothing to report, or a file is broken.
    """
    page = page_of(read_results(directory))
    path = directory / "report.html"
    # A reader who reloads meanwhile finds the old page, not half of the new one.
    draft = path.with_suffix(".html.tmp")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)
    return path


def page_of(results: Results) -> str:
    """The page, complete in itself."""
    head = joined(
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        # A page without an icon of its own makes browsers ask a server for one.
        void("link", rel="icon", href="data:,"),
        element("title", "relbo report"),
        element("style", _asset("page.css")),
    )
    main = element(
        "main",
        provenance_section(results),
        questions_section(results),
        *(experiment_section(ran) for ran in results.ran),
        *(fit_section(fitted) for fitted in results.fitted),
        diagrams_section(),
    )
    body = element("body", _header(results), main, element("script", _asset("page.js")))
    return f"<!doctype html>\n{element('html', element('head', head), body, lang='en')}\n"


def _header(results: Results) -> Markup:
    links = [element("a", "Questions", href="#questions")]
    links += [element("a", ran.name, href=f"#{ran.name}") for ran in results.ran]
    links += [element("a", fit.name, href=f"#fit-{fit.name}") for fit in results.fitted]
    links.append(element("a", "Diagrams", href="#diagrams"))
    return element(
        "header",
        element("h1", "relbo report"),
        element(
            "p",
            "Variational inference with samplers inside: what was run here, beside what the "
            "paper ",
            element("cite", "Variationally Inferred Sampling Through a Refined Bound"),
            " reports.",
        ),
        element("nav", *links, aria_label="Sections"),
    )


def experiment_section(ran: Ran) -> Markup:
    """Question, verdicts, and for each protocol its table and figures."""
    question = ran.story.question if ran.story is not None else ran.summary
    protocols = [p for p in _PROTOCOLS if any(r.protocol == p for r in ran.metrics.records)]
    others = {r.protocol for r in ran.metrics.records} - set(_PROTOCOLS)
    shown = [_protocol_block(ran, protocol) for protocol in [*protocols, *sorted(others)]]
    prefixes = tuple(f"{protocol}_" for protocol in [*protocols, *others])
    rest = [f for f in ran.figures if not f.path.stem.startswith(prefixes)]
    return element(
        "section",
        element("h2", ran.name),
        element("p", question, class_="asks") if question else None,
        _verdicts(ran.claims),
        *shown,
        *(figure_block(figure) for figure in rest),
        id=ran.name,
    )


def _verdicts(claims: list[Claim]) -> Markup | None:
    if not claims:
        return None
    items = [
        element(
            "li",
            verdict_badge(claim),
            " ",
            element("strong", claim.text),
            element("p", claim.why),
        )
        for claim in claims
    ]
    return joined(element("h3", "Verdict"), element("ul", *items, class_="claims"))


def _protocol_block(ran: Ran, protocol: str) -> Markup:
    records = [record for record in ran.metrics.records if record.protocol == protocol]
    figures = [f for f in ran.figures if f.path.stem.startswith(f"{protocol}_")]
    run = ran.metrics.head["runs"].get(protocol, {})
    quick = element("p", "A quick run: to look at, not to quote.", class_="quick")
    return joined(
        element("h3", _PROTOCOLS.get(protocol, protocol)),
        quick if is_quick(run) else None,
        records_table(f"{ran.name}, {protocol} protocol", records, f"{ran.name}-{protocol}"),
        *(figure_block(figure) for figure in figures),
    )


def fit_section(fitted: Fitted) -> Markup:
    """A posterior's summary and figures."""
    label = f"Summary of {fitted.name}"
    summary = element("pre", fitted.summary)
    return element(
        "section",
        element("h2", f"{fitted.name}: a posterior by relbo fit"),
        element("div", summary, class_="scroll", tabindex="0", role="region", aria_label=label),
        *(figure_block(figure) for figure in fitted.figures),
        id=f"fit-{fitted.name}",
    )


def _asset(name: str) -> Markup:
    return Markup(files("relbo.report").joinpath(name).read_text(encoding="utf-8"))
