"""Compares the numbers of the pages with the files of results that they come from.

Each function below writes the rows or phrases that a page has to contain, from the newest file
of its benchmark. The tables of the image experiments and of the devices have their own tests.
"""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"`(python (benchmarks|examples)/|relbo-paper run |relbo )|`--protocol ")
NUMBERS = re.compile(r"^\|.*\| \**-?\d+\.\d\d", re.MULTILINE)
"""A row of a table in which a cell begins with a decimal number."""


def newest(benchmark: str):
    return json.loads(max(RESULTS.glob(f"{benchmark}-2*.json")).read_text())["results"]


def records(experiment: str, protocol: str) -> dict[str, dict]:
    """The records of an experiment of the paper, by row and metric."""
    path = ROOT / "paper" / "results" / experiment / "metrics.json"
    found = [r for r in json.loads(path.read_text())["records"] if r["protocol"] == protocol]
    rows: dict[str, dict] = {}
    for record in found:
        rows.setdefault(record["row"], {})[record["metric"]] = record
    return rows


def short(value: float, digits: int) -> str:
    """Without the zero before the point, as in ± .004."""
    return f"{value:.{digits}f}".lstrip("0")


def rows_of_trust():
    summary = newest("gallery")["summary"]
    for group, name in (("tuned", "tuned on"), ("held out", "held out")):
        cells = summary[group]["table"]
        count = lambda verdict, cells=cells: sum(cell[verdict] for cell in cells.values())
        trusted = {
            verdict: sum(cells[f"{kind}, trusted"][verdict] for kind in ("ordinary", "nasty"))
            for verdict in ("right", "wrong")
        }
        right, wrong = count("right"), count("wrong")
        runs = right + wrong + count("no draws")
        cells = (name, runs, right, trusted["right"], wrong, trusted["wrong"])
        yield f"| {' | '.join(map(str, cells))} |"


def phrases_of_trust():
    runs = newest("gallery")["runs"]
    wrong = [run for run in runs if not run["right"]]
    right = [run for run in runs if run["right"]]
    cases = {run["case"]: run["kind"] for run in runs}
    nasty = sum(kind == "nasty" for kind in cases.values())
    trusted = sum(run["trusted"] for run in right) / len(right)
    yield f"{len(runs)} runs on {len(cases)} posteriors with known truth, {nasty} of them nasty"
    deceived = sum(run["trusted"] for run in wrong)
    yield f"{len(wrong)} were wrong, and {deceived} of these were trusted"
    yield f"of the right ones {trusted:.0%} were".replace("%", " %")


def rows_of_posteriors():
    results = newest("infer")
    methods = ("relbo.infer", "NUTS", "relbo.fit", "AutoNormal", "AutoMultivariateNormal")
    methods = (*methods, "AutoDAIS", "pathfinder")
    for posterior, ratio in results["summary"]["NUTS's time over infer's"].items():
        rows = [row for row in results["rows"] if row["posterior"] == posterior]
        cells = []
        for method in methods:
            [row] = [row for row in rows if row["method"].split(",")[0] == method]
            error = max(row["mean"], row["sd"])
            cell = f"{error:.2f}" if error < 10 else f"{error:.0f}"
            cells.append(f"**{cell}**" if method == "relbo.fit" else cell)
        yield f"| {posterior} | {ratio:.1f} | {' | '.join(cells)} |"


def phrases_of_posteriors():
    results = newest("infer")
    yield f"by a median factor of {results['summary']['median ratio']:.1f}"
    for method, name in (("AutoNormal", "its errors are"), ("relbo.fit", "had errors of")):
        rows = [row for row in results["rows"] if row["method"].split(",")[0] == method]
        errors = sorted(max(row["mean"], row["sd"]) for row in rows)
        largest = f"{errors[-1]:.2f}" if errors[-1] < 10 else f"{errors[-1]:.0f}"
        yield f"{name} {errors[0]:.2f} to {largest}"


def guides() -> dict[tuple[str, str], dict]:
    return {(row["guide"], row["program"]): row for row in newest("guides")["elbos"]}


def rows_of_guides():
    found = guides()
    programs = ("non_centred", "centred")
    names = (
        "AutoNormal",
        "AutoMultivariateNormal",
        "AutoRefined T=16 on AutoMultivariateNormal",
    )
    for name in names:
        rows = [found[name, program] for program in programs]
        yield f"| {name} | " + " | ".join(
            f"{row['elbo']:.3f} ± {short(row['stderr'], 3)}" for row in rows
        )
    cells = [
        " / ".join(f"{found[f'AutoDAIS K={k}', program]['elbo']:.3f}" for k in (5, 8, 16))
        for program in programs
    ]
    yield f"| AutoDAIS K=5 / 8 / 16 | {cells[0]} | {cells[1]} |"
    cells = [
        "{:.3f} / {:.3f} / **{:.3f}**".format(
            *(found[f"AutoRefined T={k}", program]["elbo"] for k in (5, 8, 16))
        )
        for program in programs
    ]
    yield f"| AutoRefined T=5 / 8 / 16 | {cells[0]} | {cells[1]} |"


def phrases_of_guides():
    found = guides()
    pair = lambda guide: [found[guide, p]["elbo"] for p in ("non_centred", "centred")]
    yield "is {:.3f} (non-centred) and {:.3f} (centred)".format(*pair("AutoNormal"))
    yield "has {:.3f} and {:.3f}, where `AutoRefined`".format(*pair("AutoDAIS K=8"))
    yield "has {:.3f} and {:.3f}.".format(*pair("AutoRefined T=8"))
    costs = newest("guides")["costs"]
    yield f"took {costs['compile_ratio']:.2f} times the CPU time"
    yield f"update {costs['update_ratio']:.2f} times as long"


def rows_of_bounds():
    found = newest("evidence")
    for density in ("ionosphere", "seeds", "brownian", "funnel", "cox"):
        digits = 2 if density == "cox" else 3
        cells = []
        for k in (8, 32, 128):
            runs = [run for run in found if (run["density"], run["K"]) == (density, k)]
            elbos = [run["elbo"] for run in runs]
            error = runs[0]["stderr"]
            if len(runs) > 1:
                error = statistics.stdev(elbos) / len(runs) ** 0.5
            mean = statistics.fmean(elbos)
            cells.append(f"**{mean:.{digits}f}** ± {short(error, digits)}")
        yield " | ".join(cells)


def phrases_of_memory():
    ratios = newest("memory")["memory_ratio_with_remat"]
    yield "takes {:.2f} (SGD, particle) to {:.2f} (SGLD, reverse kernel)".format(
        *ratios.values()
    )


def rows_of_accounts():
    names = {
        "no steps": "no steps",
        "Underdamped, ReverseKernelAccount": "Underdamped, reverse kernel",
        "SGD, ChangeOfVariablesAccount": "SGD, change of variables (monotone)",
        "SGD, GaussianAccount": "SGD, Gaussian",
        "SGD, ParticleAccount": "SGD, particle (surrogate)",
        "SGLD, MonteCarloAccount": "SGLD, Monte Carlo (surrogate)",
        "FokkerPlanckFlow, ParticleAccount": "Fokker-Planck flow, particle (surrogate)",
    }
    found = {(row["account"], row["density"]): row for row in newest("accounts")["accounts"]}
    for account, name in names.items():
        pair = [found[account, density] for density in ("correlated", "funnel")]
        cells = [f"{row['objective']:.3f} | {row['sd_ratio']:.2f}" for row in pair]
        yield f"| {name} | {cells[0]} | {cells[1]} |"


def rows_of_series():
    results = newest("series")
    names = {
        "relbo": "`StructuralModel`",
        "relbo, level a random walk": "level a random walk",
        "statsmodels": "statsmodels",
    }
    for key, name in names.items():
        row = results[key]
        scores = f"{row['MAE']:.3f} | {row['interval score']:.3f} | {row['log score']:.3f}"
        yield f"| {name} | {scores} | {100 * row['coverage']:.1f} % |"


def rows_of_state_space():
    for model in ("dlm", "hmm"):
        seconds = newest("state_space")[model]["seconds"]
        for case in ("one gradient", "in a loop", "64 at once"):
            ours = seconds[case]["relbo"]
            rivals = [seconds[case].get(name) for name in ("dynamax", "cuthbert", "torch")]
            cells = ["" if rival is None else f"{rival / ours:#.2g}" for rival in rivals]
            yield "| " + " | ".join(_plain(cell) for cell in cells).rstrip() + " |"


def _plain(cell: str) -> str:
    """Writes 4.5e+02 as 450 and 42. as 42."""
    return f"{float(cell):.0f}" if "e" in cell else cell.rstrip(".")


def rows_of_the_funnel():
    for row, metrics in records("funnel", "sound").items():
        if "no cap" in row:  # a mean without a meaning, as the page says
            continue
        elbo = metrics.get("ELBO") or metrics["objective, a bound while one-to-one"]
        sd = metrics["sd of z1 (exact: 1.35)"]
        cells = [f"{m['value']:.3f} ± {m['stderr']:.3f}" for m in (elbo, sd)]
        yield f"| {row} | {cells[0]} | {cells[1]} |"
    for row, metrics in records("funnel", "paper").items():
        elbo = metrics["negative ELBO at iteration 30"]
        loss = metrics.get("surrogate loss at iteration 30", elbo)
        word = "" if loss is elbo else "surrogate "
        cells = [f"{m['value']:.3f} ± {m['stderr']:.3f}" for m in (loss, elbo)]
        yield f"| {row} | {word}{cells[0]} | {loss['paper']:.3f} | {cells[1]} |"


def rows_of_carbon_dioxide():
    names = {
        "posterior": "posterior",
        "posterior, level a random walk": "posterior, level a random walk",
        "statsmodels UnobservedComponents": "statsmodels",
    }
    found = records("co2", "sound")
    for row, name in names.items():
        scores = found[f"{row}, paper's window"]
        values = [scores[metric]["value"] for metric in ("MAE", "interval score", "log score")]
        coverage = scores["coverage"]["value"]
        yield "| {} | {:.3f} | {:.2f} | {:.3f} | {:.0f} % |".format(
            name, *values, 100 * coverage
        )
        scores = found[f"{row}, rolling"]
        cells = [
            f"{scores[metric]['value']:.{digits}f} ± {short(scores[metric]['stderr'], digits)}"
            for metric, digits in (("MAE", 3), ("interval score", 2), ("log score", 3))
        ]
        coverage = scores["coverage"]["value"]
        yield f"| {name} | {' | '.join(cells)} | {100 * coverage:.1f} % |"


def rows_of_forecasts():
    """The whole table: a series, then its methods."""
    found = newest("forecasts")["scores"]
    lines = []
    for series, rows in found.items():
        number = rows["relbo"]["windows"]
        lines.append(f"| **{series}**, {number} windows | | | | |")
        for method, row in rows.items():
            mae, interval = (three_digits(row[name]) for name in ("MAE", "interval score"))
            coverage = f"{100 * row['coverage']:.1f} %"
            lines.append(
                f"| {method} | {mae} | {interval} | {row['log score']:.3f} | {coverage} |"
            )
    yield "\n".join(lines)


def three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


SHOWN = [
    ("benchmarks", rows_of_trust),
    ("methods", phrases_of_trust),
    ("benchmarks", rows_of_posteriors),
    ("methods", phrases_of_posteriors),
    ("benchmarks", rows_of_guides),
    ("methods", phrases_of_guides),
    ("benchmarks", rows_of_bounds),
    ("benchmarks", phrases_of_memory),
    ("choosing", rows_of_accounts),
    ("state_space", rows_of_series),
    ("state_space", rows_of_state_space),
    ("benchmarks", rows_of_the_funnel),
    ("state_space", rows_of_carbon_dioxide),
    ("state_space", rows_of_forecasts),
]


@pytest.mark.parametrize(
    ("page", "expected"), SHOWN, ids=lambda value: getattr(value, "__name__", value)
)
def test_page_shows_the_recorded_numbers(page, expected):
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
    missing = [part for part in expected() if " ".join(part.split()) not in text]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_numbers_name_their_command(page):
    """A section with a table of measured numbers says which command printed them."""
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE):
        if NUMBERS.search(section):
            assert COMMAND.search(section), section.splitlines()[0]


def test_readme_agrees_with_the_results():
    """Only where it quotes them: the README chooses which numbers it has."""
    text = " ".join((ROOT / "README.md").read_text().split())
    for phrase in phrases_of_trust():
        words = [re.escape(part) for part in re.split(r"\d+", phrase)]
        quoted = re.search(r"\d+".join(words), text, re.IGNORECASE)
        assert quoted is None or quoted[0].lower() == phrase.lower()
