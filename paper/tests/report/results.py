"""Directories of results with hand-written numbers."""

from relbo_paper.harness.experiments import Options
from relbo_paper.harness.metrics import Record, begin_run, write_metrics

SVG = """<?xml version="1.0" encoding="utf-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36pt" viewBox="0 0 72 36">
<defs><path id="shared" d="M0 0 L72 36"/></defs><use href="#shared" stroke="#000"/></svg>
"""


def record(experiment="funnel", protocol="sound", row="T=0", metric="ELBO", **changes):
    fields = {
        "value": -0.8,
        "stderr": 0.01,
        "seeds": 3,
        "estimator": "mean of 10 draws",
        "valid_bound": True,
        "paper": None,
        "seconds": 1.25,
    }
    return Record(experiment, protocol, row, metric, **{**fields, **changes})


def funnel_records(*, refined=-0.4, counted=0.9):
    """The records that the claims of the funnel use."""
    at = "at iteration 30"
    refined_row = "T=1 SGLD 0.05, Monte Carlo"
    return [
        record("funnel", "paper", "T=0", f"negative ELBO {at}", value=0.9, paper=1.011),
        record(
            "funnel",
            "paper",
            refined_row,
            f"surrogate loss {at}",
            value=-0.2,
            paper=0.667,
            valid_bound=False,
        ),
        record("funnel", "paper", refined_row, f"negative ELBO {at}", value=counted),
        record(row="T=0", value=-0.8),
        record(row="T=8 SGD, change of variables", value=9.0, valid_bound=None),
        record(row="T=32", value=refined),
    ]


def write_experiment(directory, records=None, name="funnel", command="relbo-paper run"):
    records = funnel_records() if records is None else records
    path = directory / name
    options = Options(command=command, quick="--quick" in command)
    write_metrics(path / "metrics.json", records, begin_run(options))
    (path / "paper_loss.svg").write_text(SVG)
    (path / "sound_contours.svg").write_text(SVG)
    return path


def write_fit(directory, name="schools", summary="mean  sd\n1.0   2.0\n"):
    path = directory / name
    path.mkdir(parents=True)
    (path / "summary.txt").write_text(summary)
    (path / "trace.svg").write_text(SVG)
    return path
