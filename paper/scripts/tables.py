"""Writes the tables of the image experiments into the pages, from `paper/results` alone.

    python paper/scripts/tables.py [--check]

A page has a table between `<!-- table NAME -->` and `<!-- end -->`. With `--check` nothing is
written, and a table that differs from the results is an error.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from relbo_paper.harness.experiments import Protocol
from relbo_paper.harness.metrics import Record, read_metrics
from relbo_paper.images.autoencoders import (
    EPOCH_SECONDS,
    LOG_LIKELIHOOD,
    OBJECTIVE,
    PAPER_ESTIMATE,
)
from relbo_paper.images.claims import BY_ADAM, FOR_LONG, MORE_LATENTS
from relbo_paper.images.classifier_claims import (
    ABSTAINED,
    ACCURACY,
    CALIBRATION,
    LOG_SCORE,
    UTILITY,
)
from relbo_paper.images.rows import paper_rows, sound_rows

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "experiments.md")
RESULTS = ROOT / "paper" / "results"
SETS = {"vae-mnist": "MNIST", "vae-fashion": "Fashion-MNIST"}

Lines = list[tuple[str, ...]]


class KeptResults:
    """The kept records, found by experiment, protocol, row and metric."""

    def __init__(self, directory: Path):
        self.directory = directory

    def records(self, name: str, protocol: Protocol) -> list[Record]:
        path = self.directory / name / "metrics.json"
        found = read_metrics(path).records if path.exists() else []
        return [record for record in found if record.protocol == protocol]

    def find(self, name: str, protocol: Protocol, row: str, metric: str) -> Record | None:
        found = (r for r in self.records(name, protocol) if (r.row, r.metric) == (row, metric))
        return next(found, None)


def shown(record: Record | None, digits: int = 2, *, has_error: bool = True) -> str:
    """Formats a value with its standard error over seeds."""
    if record is None:
        return ""
    if record.value is None:
        return "not finite"
    is_bare = record.stderr is None or not has_error
    error = "" if is_bare else f" ± {record.stderr:.{digits}f}"
    return f"{record.value:.{digits}f}{error}"


def _seeds(records: list[Record | None]) -> str:
    return " / ".join("-" if record is None else f"{record.seeds}" for record in records)


def likelihoods(results: KeptResults) -> Lines:
    """Returns every row of the sound protocol that was run, with its published figures."""
    lines: Lines = [("trained as", "seeds", "seconds per epoch")]
    for label in SETS.values():
        lines[0] += (label, "training objective")
    lines[0] += ("published",)
    for row in sound_rows():
        found = [results.find(name, "sound", row.name, LOG_LIKELIHOOD) for name in SETS]
        if not any(found):
            continue
        taken = [results.find(name, "sound", row.name, EPOCH_SECONDS) for name in SETS]
        seconds = (shown(one, 0, has_error=False) or "-" for one in taken)
        cells = (row.name, _seeds(found), " / ".join(seconds))
        for name, record in zip(SETS, found, strict=True):
            bound = results.find(name, "sound", row.name, OBJECTIVE)
            trained = shown(bound, 1, has_error=False)
            cells += (shown(record), trained)
        published = " / ".join(f"{row.published[name]:g}" for name in SETS if row.published)
        lines.append((*cells, published))
    return lines


def main_likelihoods(results: KeptResults) -> Lines:
    """Returns the most important rows with fewer columns."""
    main = ("VAE", "VIS T=5, reverse kernel", "VIS T=5, Gaussian", "IWAE")
    again = (f"{row}{how}" for how in (BY_ADAM, FOR_LONG, MORE_LATENTS) for row in main)
    names = (*main, "UIVI", "HMC-DLGM", *again, f"VAE{FOR_LONG}{MORE_LATENTS}")
    lines: Lines = [("trained as", *SETS.values(), "published, MNIST", "published, Fashion")]
    rows = {row.name: row for row in sound_rows()}
    for name in names:
        found = [results.find(data, "sound", name, LOG_LIKELIHOOD) for data in SETS]
        if any(found):
            published = (_published(rows[name].published.get(data)) for data in SETS)
            lines.append((name, *map(shown, found), *published))
    return lines


def published_draw(results: KeptResults) -> Lines:
    """Compares rows on the published binarization with the same rows on ours."""
    other = KeptResults(results.directory / "published-draw")
    lines: Lines = [("trained as", "our binarization", "the published one", "published")]
    for row in sound_rows():
        found = other.find("vae-mnist", "sound", row.name, LOG_LIKELIHOOD)
        if found is not None:
            ours = results.find("vae-mnist", "sound", row.name, LOG_LIKELIHOOD)
            published = _published(row.published.get("vae-mnist"))
            lines.append((row.name, shown(ours), shown(found), published))
    return lines


def surrogates(results: KeptResults) -> Lines:
    """Compares the paper's estimate with the log-likelihood of the same model."""
    lines: Lines = [("data", "trained as", "the paper's estimate", "paper", "log-likelihood")]
    for name, label in SETS.items():
        plain, *refined = (row.name for row in paper_rows())
        for row in (plain, "VIS-0-10", *refined):
            estimate = results.find(name, "paper", row, PAPER_ESTIMATE)
            # Steps at test time do not change the model.
            model = plain if row == "VIS-0-10" else row
            likelihood = results.find(name, "paper", model, LOG_LIKELIHOOD)
            if estimate is not None:
                cells = (shown(estimate), _published(estimate.paper), shown(likelihood))
                lines.append((label, row, *cells))
    return lines


def classifiers(results: KeptResults) -> Lines:
    """Returns the rows of the classifier in both protocols."""
    metrics = (ACCURACY, CALIBRATION, LOG_SCORE, UTILITY, ABSTAINED)
    lines: Lines = [("protocol", "trained and tested as", "seeds", *metrics, "accuracy, paper")]
    for protocol in ("paper", "sound"):
        records = results.records("cvae", protocol)
        for row in dict.fromkeys(record.row for record in records):
            found = [results.find("cvae", protocol, row, metric) for metric in metrics]
            first = found[0]
            if first is None:
                continue
            cells = tuple(shown(record, 4) for record in found)
            lines.append((protocol, row, f"{first.seeds}", *cells, _published(first.paper)))
    return lines


def _published(figure: float | None) -> str:
    return "" if figure is None else f"{figure:g}"


TABLES: dict[str, Callable[[KeptResults], Lines]] = {
    "likelihoods": likelihoods,
    "main-likelihoods": main_likelihoods,
    "published-draw": published_draw,
    "surrogates": surrogates,
    "classifiers": classifiers,
}


def markdown(lines: Lines) -> str:
    rule = ("---",) * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def filled(page: str, results: KeptResults) -> str:
    """Returns a page with its tables filled from the results."""

    def fill(match: re.Match[str]) -> str:
        table = markdown(TABLES[match["name"]](results))
        return f"{match['begin']}\n{table}\n<!-- end -->"

    pattern = r"(?P<begin><!-- table (?P<name>\S+) -->)\n.*?<!-- end -->"
    return re.sub(pattern, fill, page, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes tables into the pages.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    results = KeptResults(RESULTS)
    stale = []
    for path in PAGES:
        page = path.read_text()
        new = filled(page, results)
        if new != page:
            stale.append(path)
            if not check:
                path.write_text(new)
    for path in stale:
        print(f"{path.name}: {'differs from the results' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
