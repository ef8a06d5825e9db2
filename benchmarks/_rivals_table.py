"""Rows and summary of benchmarks/rivals.py."""

from typing import Any

import numpy as np

# Larger is better for a rate, smaller for seconds.
MEASURES = {
    "rate_cold": "ESS/s with compilation",
    "rate_warm": "ESS/s without compilation",
    "reached_cold": "seconds to error 0.01 with compilation",
    "reached_warm": "seconds to error 0.01 without compilation",
}
# Draws with an error this large are wrong, and their rate does not count.
WRONG = 0.25


def row_of(model: str, method: str, runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Takes the median of each measure over runs, and of the variants the best."""
    by_variant = [_medians([run[index] for run in runs]) for index in range(len(runs[0]))]
    row: dict[str, Any] = {"model": model, "method": method, "num_runs": len(runs)}
    for name in MEASURES:
        row[name] = _best(name, [variant[name] for variant in by_variant])
    fastest = max(by_variant, key=lambda variant: variant["rate_warm"] or 0.0)
    row |= {name: fastest[name] for name in ("seconds_cold", "seconds_warm", "ess", "error")}
    row["variants"] = by_variant
    return row


def _medians(records: list[dict[str, Any]]) -> dict[str, Any]:
    values = [_values(record) for record in records]
    medians: dict[str, Any] = {"variant": records[0]["variant"]}
    for name in values[0]:
        # A run that did not arrive is slower than all that did.
        missing = 0.0 if name in ("rate_cold", "rate_warm", "ess") else np.inf
        known = [value[name] for value in values]
        median = float(np.median([missing if v is None else v for v in known]))
        medians[name] = median if np.isfinite(median) and median > 0 else None
    medians["stopped"] = [record.get("stopped") for record in records]
    return medians


def _values(record: dict[str, Any]) -> dict[str, float | None]:
    cold, warm = record.get("cold", {}), record.get("warm", {})
    # A second call that did not finish in time took at least as long as the first.
    last = warm if "seconds" in warm else cold
    seconds_cold, seconds_warm = cold.get("seconds"), last.get("seconds")
    error, ess = last.get("error"), last.get("ess")
    reached = warm.get("reached", cold.get("reached"))
    right = error is None or error <= WRONG
    compilation = max(0.0, seconds_cold - seconds_warm) if seconds_cold else None
    return {
        "seconds_cold": seconds_cold,
        "seconds_warm": seconds_warm,
        "ess": ess,
        "error": error,
        "rate_cold": ess / seconds_cold if ess and right and seconds_cold else None,
        "rate_warm": ess / seconds_warm if ess and right and seconds_warm else None,
        "reached_cold": reached + compilation if reached and compilation is not None else None,
        "reached_warm": reached,
    }


def _best(name: str, values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if name.startswith("rate") else min(known)


def print_row(row: dict[str, Any] | None) -> None:
    """Prints a row, or the head of the table."""
    if row is None:
        print("In each pair: with compilation, without it. Error: after the usual draws.")
        names = ("seconds", "", "ESS", "ESS/s", "", "to 0.01", "", "error")
        print(f"{'model':22}{'method':8}" + "".join(f"{name:>9}" for name in names))
        return
    names = ("seconds_cold", "seconds_warm", "ess", "rate_cold", "rate_warm")
    cells = [_cell(row[name]) for name in (*names, "reached_cold", "reached_warm", "error")]
    line = f"{row['model']:22}{row['method']:8}" + "".join(f"{cell:>9}" for cell in cells)
    wrong = row["error"] is not None and row["error"] > WRONG
    print(line + ("  wrong" if wrong else ""), flush=True)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def summarise(rows: list[dict[str, Any]], timeout: float) -> dict[str, Any]:
    """Compares relbo with the best of the others on each model and measure.

    Where only one of the two has a value, the other is taken to need the time limit: for
    seconds, the factor is a bound; for rates, 0 or infinity.
    """
    summary: dict[str, Any] = {}
    ours = {row["model"]: row for row in rows if row["method"] == "relbo"}
    for measure, title in MEASURES.items():
        factors = {}
        for model, row in ours.items():
            rivals = [r[measure] for r in rows if r["model"] == model and r is not row]
            if rivals:
                factors[model] = _factor(measure, row[measure], _best(measure, rivals), timeout)
        known = {model: factor for model, factor in factors.items() if factor is not None}
        if known:
            values = np.array(list(known.values()))
            summary[title] = {
                "factors": {model: float(f"{factor:.3g}") for model, factor in known.items()},
                "ahead": f"{int(np.sum(values > 1))} of {len(values)}",
                "no method arrived": [model for model in factors if model not in known],
                "median factor": float(np.median(values)),
                "worst factor": float(values.min()),
            }
    return summary


def best_rivals(rows: list[dict[str, Any]]) -> dict[str, dict[str, str | None]]:
    """Returns, by model and measure, the name of the rival with the best value."""
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        if row["method"] == "relbo":
            continue
        rivals = [r for r in rows if r["model"] == row["model"] and r["method"] != "relbo"]
        found[row["model"]] = {name: _best_of(name, rivals) for name in MEASURES}
    return found


def _best_of(measure: str, rivals: list[dict[str, Any]]) -> str | None:
    best = _best(measure, [row[measure] for row in rivals])
    return next((row["method"] for row in rivals if best and row[measure] == best), None)


def print_best_rivals(found: dict[str, dict[str, str | None]]) -> None:
    print("\nBest rival: ESS/s with compilation, without it; seconds to 0.01 with, without")
    for model, names in found.items():
        print(f"{model:22}" + "".join(f"{names[measure] or '-':>9}" for measure in MEASURES))


def _factor(measure: str, our: float | None, best: float | None, timeout: float) -> Any:
    if our is None and best is None:
        return None
    if measure.startswith("rate"):
        return 0.0 if our is None else np.inf if best is None else our / best
    return (best or timeout) / (our or timeout)


def print_summary(summary: dict[str, Any]) -> None:
    if not summary:
        return
    print("\nrelbo against the best rival (above 1: relbo is ahead)")
    for title, entry in summary.items():
        print(f"{title}:")
        print(
            "  " + ", ".join(f"{name} {factor:g}" for name, factor in entry["factors"].items())
        )
        print(
            f"  ahead on {entry['ahead']}, median factor {entry['median factor']:.2f}, "
            f"worst factor {entry['worst factor']:.2f}"
        )
        if entry["no method arrived"]:
            print(f"  left out, no method arrived: {', '.join(entry['no method arrived'])}")
