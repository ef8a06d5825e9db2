"""Where a fit starts: seeds, and a normal fitted by natural gradients."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Key

from relbo.core.checks import check_bool, check_integer
from relbo.guides.warm_start import Values, can_start_warm, density_of, warm_params
from relbo.training.data import TrainingData
from relbo.training.program import Program
from relbo.training.update import InitialValues


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Says how many runs a fit makes at once and where they start.

    Args:
        num_seeds: number of runs, each from its own initial values. `Fit.params` has the
            parameters of the best one, `Fit.seed_params` those of all.
        warm: whether to fit a normal by natural gradients first, if the guide has a normal
            base. It finds the scales of a posterior that Adam alone would not reach.
    """

    num_seeds: int = 1
    warm: bool = True

    def __post_init__(self) -> None:
        check_integer("num_seeds", self.num_seeds, 1)
        check_bool("warm", self.warm)


def warm_values(
    keys: Key[Array, " s"],
    program: Program,
    data: TrainingData,
    initial: InitialValues,
    report: Callable[..., None],
    deadline: float,
) -> Values:
    """Fits a normal for each seed, from where the guide's base would have started.

    Args:
        keys: one key per seed.
        program: the model and its guide.
        data: their arguments.
        initial: the initial values of all seeds.
        report: is told about progress.
        deadline: a time of `time.monotonic`.

    Returns:
        Constrained values of the base's parameters, along a leading axis of seeds; none if the
        guide has no normal base, the model has no density, or no normal was found.
    """
    if not can_start_warm(program.guide):
        return {}
    problem = density_of(program.model, data.first_call)
    if problem is None:
        return {}
    found = []
    for seed, key in enumerate(keys):
        params = {name: value[seed] for name, value in initial.params.items()}
        values = warm_params(
            key,
            program.guide,
            problem,
            params,
            report=lambda _, fraction: report("warm start", fraction),
            is_late=lambda: time.monotonic() > deadline,
        )
        if values is None:
            return {}
        found.append(values)
    return jax.tree.map(lambda *x: np.stack(x), *found)
