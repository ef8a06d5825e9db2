"""State-space models as optimisation problems (paper, section 5.2): does T > 0 pay?

`paper`: one learning rate for every T, negative log-likelihood against iterations and against
seconds. A step inside the guide is a second step within the same iteration, so that T > 0 must
be ahead at equal iterations; seconds are the fairer unit.

`sound`: every T has the learning rate (and T > 0 the step size) that did best from other
starts, all use the same number of gradients, and the losses are compared with the best value
found.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.figures import LossCurve, draw_loss_curves
from relbo_paper.harness.metrics import Record, over_seeds
from relbo_paper.harness.optimise import LogDensity
from relbo_paper.harness.point_fits import PointOptimiser, PointRecipe
from relbo_paper.harness.progress import counted
from relbo_paper.harness.protocols import run_protocols

NUM_STEPS = (0, 1, 2)
PAPER_LEARNING_RATE = 0.05


class LikelihoodProblem(NamedTuple):
    """A likelihood to maximise."""

    name: str
    title: str
    logdensity_fn: LogDensity
    """log p(series | parameters) at unconstrained parameters; the priors are flat."""
    draw_start: Callable[[PRNGKeyArray], PyTree]
    step_size: float
    """Of the steps inside the guide in the `paper` protocol; the paper does not state it."""


class OptimisationSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    num_iterations: int
    learning_rates: tuple[float, ...]
    step_sizes: tuple[float, ...]


FULL = OptimisationSettings(10, 200, (0.02, 0.05, 0.1, 0.2, 0.5), (1e-5, 1e-4, 1e-3, 1e-2))
QUICK = OptimisationSettings(3, 60, (0.05, 0.2), (1e-4, 1e-3))


class _TrainedRecipe(NamedTuple):
    recipe: PointRecipe
    losses: np.ndarray
    seconds_per_iteration: float
    seconds: float

    @property
    def gradients_per_iteration(self) -> int:
        return self.recipe.num_steps + 1

    @property
    def curve(self) -> LossCurve:
        return LossCurve(
            _label(self.recipe),
            self.losses,
            self.seconds_per_iteration,
            self.gradients_per_iteration,
        )


def run_problem(
    problem: LikelihoodProblem,
    settings: OptimisationSettings,
    directory: Path,
    options: Options,
) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    optimiser = PointOptimiser(problem.logdensity_fn, settings.num_iterations)

    def run_protocol(protocol: Protocol) -> tuple[list[Record], list[Path]]:
        trained = _train_all(optimiser, problem, settings, protocol)
        figures = draw_loss_curves(
            directory / f"{protocol}_loss",
            [each.curve for each in trained],
            "negative log-likelihood",
            f"{problem.title}, {protocol} protocol",
        )
        return list(_records(problem, protocol, settings, trained)), figures

    return run_protocols(directory, options, run_protocol)


def _train_all(
    optimiser: PointOptimiser,
    problem: LikelihoodProblem,
    settings: OptimisationSettings,
    protocol: Protocol,
) -> list[_TrainedRecipe]:
    trained = []
    with counted(f"{problem.name}, {protocol}", len(NUM_STEPS)) as done:
        for num_steps in NUM_STEPS:
            if protocol == "paper":
                recipe = PointRecipe(num_steps, PAPER_LEARNING_RATE, problem.step_size)
            else:
                recipe = _choose(optimiser, problem, settings, num_steps)
            trained.append(_train(optimiser, problem, settings, recipe))
            done(_label(recipe))
    return trained


def starts(problem: LikelihoodProblem, purpose: str, number: int) -> PyTree:
    """Draws starting points; those that choose a recipe are not those that are reported."""
    stream = ("report", "choose").index(purpose)
    return jax.vmap(problem.draw_start)(jr.split(jr.fold_in(jr.key(0), stream), number))


def _label(recipe: PointRecipe) -> str:
    return f"{recipe.name}, Adam {recipe.learning_rate:g}"


def _choose(
    optimiser: PointOptimiser,
    problem: LikelihoodProblem,
    settings: OptimisationSettings,
    num_steps: int,
) -> PointRecipe:
    """Returns the recipe with the smallest mean loss after the budget of gradients."""
    step_sizes = settings.step_sizes if num_steps else settings.step_sizes[:1]
    recipes = [
        PointRecipe(num_steps, learning_rate, step_size)
        for learning_rate in settings.learning_rates
        for step_size in step_sizes
    ]
    # More starts than are reported, so that a recipe that sometimes diverges is not chosen.
    begin = starts(problem, "choose", 3 * settings.num_seeds)
    last = _affordable(settings.num_iterations, num_steps + 1)
    losses = [optimiser.fit(begin, recipe).losses[:, last].mean() for recipe in recipes]
    finite = [float(loss) if math.isfinite(loss) else math.inf for loss in losses]
    return recipes[int(np.argmin(finite))]


def _train(
    optimiser: PointOptimiser,
    problem: LikelihoodProblem,
    settings: OptimisationSettings,
    recipe: PointRecipe,
) -> _TrainedRecipe:
    begin = time.perf_counter()
    points = starts(problem, "report", settings.num_seeds)
    losses = np.asarray(optimiser.fit(points, recipe).losses)
    each = optimiser.seconds_per_iteration(points, recipe)
    return _TrainedRecipe(recipe, losses, each, time.perf_counter() - begin)


def _records(
    problem: LikelihoodProblem,
    protocol: Protocol,
    settings: OptimisationSettings,
    trained: Sequence[_TrainedRecipe],
) -> Iterator[Record]:
    best = min(float(np.min(each.losses[np.isfinite(each.losses)])) for each in trained)
    budget = settings.num_iterations * trained[0].seconds_per_iteration
    for each in trained:
        record = _recorder(problem, protocol, settings, each, best)
        last = settings.num_iterations - 1
        by_gradients = _affordable(settings.num_iterations, each.gradients_per_iteration)
        by_time = min(last, max(0, int(budget / each.seconds_per_iteration) - 1))
        what = "negative log-likelihood above the best found"
        yield record(f"{what}, after {last + 1} iterations", each.losses[:, last] - best)
        yield record(
            f"{what}, after {settings.num_iterations} gradients",
            each.losses[:, by_gradients] - best,
        )
        yield record(
            f"{what}, after the seconds of T=0's {settings.num_iterations} iterations",
            each.losses[:, by_time] - best,
        )
        yield record("milliseconds an iteration", [1e3 * each.seconds_per_iteration])


def _affordable(num_gradients: int, gradients_per_iteration: int) -> int:
    """Returns the last iteration within a budget of gradients."""
    return max(0, num_gradients // gradients_per_iteration - 1)


def _recorder(
    problem: LikelihoodProblem,
    protocol: Protocol,
    settings: OptimisationSettings,
    trained: _TrainedRecipe,
    best: float,
) -> Callable[..., Record]:
    chosen = {
        "paper": "one learning rate for every T (funsor's examples have 0.05; the paper gives "
        "neither it nor the step size)",
        "sound": "learning rate and step size chosen for each T from other starts",
    }[protocol]
    estimator = (
        f"at the refined point, fast mode, Adam {trained.recipe.learning_rate:g}; {chosen}; "
        f"the best negative log-likelihood found is {best:.3f}"
    )

    def record(metric: str, values: Array | Sequence[float]) -> Record:
        return over_seeds(
            values,
            experiment=problem.name,
            protocol=protocol,
            row=trained.recipe.name,
            metric=metric,
            estimator=estimator,
            seconds=trained.seconds,
        )

    return record
