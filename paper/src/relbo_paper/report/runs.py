"""Lists every run: its command, commit, seeds and date, the versions and the machine."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from relbo_paper.report.results import ReportedExperiment

_MACHINE = {
    "processor": "{}",
    "cpus": "{} cores",
    "memory_gb": "{} GB of memory",
    "platform": "{}",
    "python": "Python {}",
}


class ReportedRun(NamedTuple):
    """One run of an experiment; the fields are texts."""

    experiment: str
    protocols: str
    seeds: str
    """The numbers of seeds (or windows) of its rows."""
    date: str
    commit: str
    command: str
    versions: str
    machine: str

    @property
    def title(self) -> str:
        return f"{self.experiment} ({self.protocols})"


class RunEnvironment(NamedTuple):
    """Versions and machine, and the runs that share them."""

    versions: str
    machine: str
    runs: str


def list_runs(experiments: Iterable[ReportedExperiment]) -> list[ReportedRun]:
    """Lists the runs of all experiments; protocols of one run share a row."""
    rows = []
    for experiment in experiments:
        grouped: list[tuple[dict[str, Any], list[str]]] = []
        for protocol, run in experiment.runs.items():
            shared = next((names for other, names in grouped if other == run), None)
            if shared is None:
                grouped.append((run, [protocol]))
            else:
                shared.append(protocol)
        rows += [_row(experiment, run, protocols) for run, protocols in grouped]
    return rows


def list_environments(runs: Iterable[ReportedRun]) -> list[RunEnvironment]:
    """Lists the distinct pairs of versions and machine."""
    shared: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        shared.setdefault((run.versions, run.machine), []).append(run.title)
    return [RunEnvironment(*pair, ", ".join(titles)) for pair, titles in shared.items()]


def _row(
    experiment: ReportedExperiment, run: dict[str, Any], protocols: list[str]
) -> ReportedRun:
    records = [r for p in experiment.protocols if p.name in protocols for r in p.records]
    seeds = sorted({record.seeds for record in records if record.seeds})
    return ReportedRun(
        experiment=experiment.name,
        protocols=", ".join(protocols),
        seeds=", ".join(map(str, seeds)),
        date=str(run.get("date", "-")).replace("T", " ").removesuffix("+00:00"),
        commit=_short(run.get("commit")),
        command=str(run.get("command") or "-"),
        versions=_versions(run.get("versions")) or "not recorded",
        machine=_machine(run.get("machine")) or "not recorded",
    )


def _short(commit: str | None) -> str:
    """Shortens a commit, but keeps the mark of uncommitted changes."""
    name, dash, mark = str(commit or "-").partition("-")
    return name[:12] + dash + mark


def _versions(versions: Any) -> str:
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _machine(machine: Any) -> str:
    if not isinstance(machine, dict):
        return ""
    return ", ".join(
        text.format(machine[name])
        for name, text in _MACHINE.items()
        if machine.get(name) is not None
    )
