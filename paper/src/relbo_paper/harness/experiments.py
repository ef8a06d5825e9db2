"""The registry of experiments, and the options that the command line passes to them.

An experiment is a module with a function `run(directory, options) -> Outcome`, a constant
`CLAIMS` that tells the report what it shows, and one line in `EXPERIMENTS`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

Protocol = Literal["paper", "sound"]
"""`paper` runs an experiment as published, `sound` without the published flaws."""


class Experiment(NamedTuple):
    """The module of an experiment, which is imported only when the experiment is run."""

    module: str
    summary: str
    time: str
    """Roughly how long both protocols take on two cores."""
    has_images: bool = False
    """Whether it takes `--only`, `--data-dir` and `--jobs`."""


class Options(NamedTuple):
    """Options of `relbo-paper run`."""

    protocols: tuple[Protocol, ...] = ("sound",)
    quick: bool = False
    """Fewer seeds and shorter training: for a first look, not for quoting."""
    num_seeds: int | None = None
    """`None` for the experiment's own number."""
    command: str = ""
    """The command line, for the record."""
    resume: bool = False
    """Keep the protocols that the same code has run with the same options."""
    data_dir: Path | None = None
    """The user's own image files; `None` for those of the package."""

    only: tuple[str, ...] = ()
    """Rows of the table to run, for the image experiments; empty for all rows."""
    num_jobs: int = 1
    """Number of fits that run at the same time, for the image experiments."""


class InputError(ValueError):
    """An option that an experiment cannot use."""


class Outcome(NamedTuple):
    """The files that an experiment wrote."""

    metrics: Path
    figures: tuple[Path, ...]


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "funnel": Experiment(
            "relbo_paper.funnel.experiment",
            "a 2-D funnel: refined guides against log Z = 0",
            "3 min",
        ),
        "tuning": Experiment(
            "relbo_paper.tuning.experiment",
            "a learned step size: does it make a long run more efficient?",
            "4 h",
        ),
        "hmm": Experiment(
            "relbo_paper.state_space.hmm",
            "a hidden Markov model: does refinement speed up optimisation?",
            "1 min",
        ),
        "dlm": Experiment(
            "relbo_paper.state_space.dlm",
            "a dynamic linear model: does refinement speed up optimisation?",
            "1 min",
        ),
        "hmm-forecast": Experiment(
            "relbo_paper.state_space.forecast",
            "a hidden Markov model: forecasts of the series 0, 1, 0, 1, ...",
            "5 min",
        ),
        "co2": Experiment(
            "relbo_paper.co2.experiment",
            "carbon dioxide at Mauna Loa: forecasts of two years",
            "10 min",
        ),
        "vae-mnist": Experiment(
            "relbo_paper.images.vae_mnist",
            "autoencoders of handwritten digits: refined encoders and other methods",
            "8 h",
            has_images=True,
        ),
        "vae-fashion": Experiment(
            "relbo_paper.images.vae_fashion",
            "autoencoders of clothes: refined encoders and other methods",
            "8 h",
            has_images=True,
        ),
        "cvae": Experiment(
            "relbo_paper.images.classifier",
            "a deep Bayes classifier: accuracy, calibration and decisions",
            "10 h",
            has_images=True,
        ),
    }
)
