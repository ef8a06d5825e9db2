"""What was run: by which command, from which commit, with which versions, on which machine."""

from typing import Any

from relbo.report._html import Markup, element, joined
from relbo.report._reading import Ran, Results
from relbo.report._tables import Cell, sortable_table


def provenance_section(results: Results) -> Markup:
    """Every run in a table; versions and machines once for all runs that share them."""
    runs = [(ran, protocols, run) for ran in results.ran for protocols, run in _runs_of(ran)]
    if not runs:
        return Markup("")
    header = ("experiment", "protocol", "seeds", "date", "commit", "command")
    rows = [
        [
            Cell(element("a", ran.name, href=f"#{ran.name}")),
            Cell(", ".join(protocols)),
            Cell(_seeds(ran, protocols)),
            Cell(element("span", _date(run), class_="whole")),
            Cell(element("code", _commit(run))),
            Cell(element("code", str(run.get("command") or "-"))),
        ]
        for ran, protocols, run in runs
    ]
    return element(
        "section",
        element("h2", "What was run"),
        sortable_table("Every run in this directory", header, rows),
        *_surroundings([(f"{ran.name} ({', '.join(p)})", run) for ran, p, run in runs]),
        _not_run(results),
        id="runs",
    )


def is_quick(run: dict[str, Any]) -> bool:
    return bool(run.get("quick", "--quick" in str(run.get("command", "")).split()))


def _runs_of(ran: Ran) -> list[tuple[list[str], dict[str, Any]]]:
    """Every run with the protocols that it went through."""
    found: list[tuple[list[str], dict[str, Any]]] = []
    for protocol, run in ran.metrics.head["runs"].items():
        same = next((protocols for protocols, other in found if other == run), None)
        if same is None:
            found.append(([protocol], run))
        else:
            same.append(protocol)
    return found


def _seeds(ran: Ran, protocols: list[str]) -> str:
    """The numbers of seeds (or windows) that the rows have."""
    records = ran.metrics.records
    found = {r.seeds for r in records if r.protocol in protocols and r.seeds}
    return ", ".join(map(str, sorted(found)))


def _surroundings(runs: list[tuple[str, dict[str, Any]]]) -> list[Markup]:
    groups: dict[str, list[str]] = {}
    for name, run in runs:
        groups.setdefault(_surrounding(run), []).append(name)
    if len(groups) == 1:
        return [element("p", Markup(text)) for text in groups]
    return [element("p", f"{', '.join(names)}: ", Markup(t)) for t, names in groups.items()]


def _surrounding(run: dict[str, Any]) -> Markup:
    versions = _named(run.get("versions"))
    parts = [element("strong", "Versions: "), versions or "not recorded", ". "]
    machine = run.get("machine")
    parts += [element("strong", "Machine: "), _machine(machine) or "not recorded", "."]
    return joined(*parts)


def _named(versions: Any) -> str:
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _machine(machine: Any) -> str:
    if not isinstance(machine, dict):
        return ""
    said = {
        "processor": "{}",
        "cpus": "{} cores",
        "memory_gb": "{} GB of memory",
        "platform": "{}",
        "python": "Python {}",
    }
    known = {name: machine.get(name) for name in said}
    return ", ".join(said[name].format(v) for name, v in known.items() if v is not None)


def _not_run(results: Results) -> Markup | None:
    if not results.missing:
        return None
    names = [f"{each.name} ({each.summary})" for each in results.missing]
    return element("p", element("strong", "Not run: "), "; ".join(names), ".")


def _date(run: dict[str, Any]) -> str:
    return str(run.get("date", "-")).replace("T", " ").removesuffix("+00:00")


def _commit(run: dict[str, Any]) -> str:
    """Short, but never without the word that says that it was changed."""
    commit = run.get("commit")
    if not commit:
        return "-"
    name, dash, mark = str(commit).partition("-")
    return name[:12] + dash + mark
