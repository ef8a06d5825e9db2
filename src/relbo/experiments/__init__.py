"""One file for each figure or table of the paper.

An experiment is a module with a function `run(directory, options) -> Outcome`, and one line in
`EXPERIMENTS`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

Protocol = Literal["paper", "sound"]


class Experiment(NamedTuple):
    """Where an experiment lives; it is imported when it is run and no sooner."""

    module: str
    summary: str
    has_images: bool = False
    """Whether it takes `--only`, `--data-dir` and `--jobs`."""


class Options(NamedTuple):
    """What the command line asks of an experiment."""

    protocols: tuple[Protocol, ...] = ("sound",)
    quick: bool = False
    """Fewer seeds and shorter training: to look at, not to quote."""
    num_seeds: int | None = None
    """`None` for the experiment's own number."""
    command: str = ""
    """What was typed, for the record."""
    resume: bool = False
    """Keep the protocols that were run before by the same code with the same options."""
    data_dir: Path | None = None
    """Files of the user's own, for the experiments on images; `None` for the package's."""

    only: tuple[str, ...] = ()
    """Rows of the table to run, for the experiments that have many; all if there are none."""
    num_jobs: int = 1
    """How many fits at once, for the experiments on images."""


class InputError(ValueError):
    """An option that an experiment cannot follow."""


class Outcome(NamedTuple):
    """What an experiment left behind."""

    metrics: Path
    figures: tuple[Path, ...]


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "funnel": Experiment(
            "relbo.experiments.funnel", "a 2-D funnel: refined guides against log Z = 0"
        ),
        "tuning": Experiment(
            "relbo.experiments.tuning", "a learned step size: is a long run worth more with it?"
        ),
        "hmm": Experiment(
            "relbo.experiments.hmm", "a hidden Markov model: is a refined point reached sooner?"
        ),
        "dlm": Experiment(
            "relbo.experiments.dlm",
            "a dynamic linear model: is a refined point reached sooner?",
        ),
        "hmm-forecast": Experiment(
            "relbo.experiments.hmm_forecast",
            "a hidden Markov model: forecasts of 0, 1, 0, 1, ...",
        ),
        "co2": Experiment(
            "relbo.experiments.co2", "carbon dioxide at Mauna Loa: forecasts of two years"
        ),
        "vae-mnist": Experiment(
            "relbo.experiments.vae_mnist",
            "autoencoders of handwritten digits: refined encoders and their peers (hours)",
            has_images=True,
        ),
        "vae-fashion": Experiment(
            "relbo.experiments.vae_fashion",
            "autoencoders of clothes: refined encoders and their peers (hours)",
            has_images=True,
        ),
        "cvae": Experiment(
            "relbo.experiments.cvae",
            "a deep Bayes classifier: accuracy, calibration and decisions (hours)",
            has_images=True,
        ),
    }
)
