"""State-space models as optimisation problems (paper, section 5.2): does T > 0 pay?

`paper`: one learning rate for every T, negative log-likelihood against iterations and against
seconds. A step inside is a second step for the price of one iteration, so that at equal
iterations T > 0 has to be ahead; seconds are the fairer price.

`sound`: every T gets the learning rate (and T > 0 the step size) that did best from other
starts, all pay the same number of gradients, and the curves are held against the best value
that anything found.
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

from relbo._progress import counted
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._curves import LossCurve, draw_curves
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._points import Climber, LogDensity, Recipe
from relbo.experiments._run import run_protocols

NUM_STEPS = (0, 1, 2)
PAPER_LEARNING_RATE = 0.05


class Problem(NamedTuple):
    """A likelihood to climb."""

    name: str
    title: str
    logdensity_fn: LogDensity
    """log p(series | parameters) at unconstrained parameters; the priors are flat."""
    draw_start: Callable[[PRNGKeyArray], PyTree]
    step_size: float
    """Of the steps inside under the paper's protocol, which names none."""


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    num_iterations: int
    learning_rates: tuple[float, ...]
    step_sizes: tuple[float, ...]


FULL = Settings(10, 200, (0.02, 0.05, 0.1, 0.2, 0.5), (1e-5, 1e-4, 1e-3, 1e-2))
QUICK = Settings(3, 60, (0.05, 0.2), (1e-4, 1e-3))


class _Trained(NamedTuple):
    recipe: Recipe
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


def run(problem: Problem, settings: Settings, directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    climber = Climber(problem.logdensity_fn, settings.num_iterations)

    def run_protocol(protocol: Protocol) -> tuple[list[Record], list[Path]]:
        trained = _train_all(climber, problem, settings, protocol)
        figures = draw_curves(
            directory / f"{protocol}_loss",
            [each.curve for each in trained],
            "negative log-likelihood",
            f"{problem.title}, {protocol} protocol",
        )
        return list(_records(problem, protocol, settings, trained)), figures

    return run_protocols(directory, options, run_protocol)


def _train_all(
    climber: Climber, problem: Problem, settings: Settings, protocol: Protocol
) -> list[_Trained]:
    trained = []
    with counted(f"{problem.name}, {protocol}", len(NUM_STEPS)) as done:
        for num_steps in NUM_STEPS:
            if protocol == "paper":
                recipe = Recipe(num_steps, PAPER_LEARNING_RATE, problem.step_size)
            else:
                recipe = _choose(climber, problem, settings, num_steps)
            trained.append(_train(climber, problem, settings, recipe))
            done(_label(recipe))
    return trained


def starts(problem: Problem, purpose: str, number: int) -> PyTree:
    # What is reported must not start where the recipe was chosen.
    stream = ("report", "choose").index(purpose)
    return jax.vmap(problem.draw_start)(jr.split(jr.fold_in(jr.key(0), stream), number))


def _label(recipe: Recipe) -> str:
    return f"{recipe.name}, Adam {recipe.learning_rate:g}"


def _choose(climber: Climber, problem: Problem, settings: Settings, num_steps: int) -> Recipe:
    """The recipe with the smallest mean loss once the gradients are spent."""
    step_sizes = settings.step_sizes if num_steps else settings.step_sizes[:1]
    recipes = [
        Recipe(num_steps, learning_rate, step_size)
        for learning_rate in settings.learning_rates
        for step_size in step_sizes
    ]
    # More starts than are reported: a recipe that runs away from one in ten must not win.
    begin = starts(problem, "choose", 3 * settings.num_seeds)
    last = _affordable(settings.num_iterations, num_steps + 1)
    losses = [climber.fit(begin, recipe).losses[:, last].mean() for recipe in recipes]
    finite = [float(loss) if math.isfinite(loss) else math.inf for loss in losses]
    return recipes[int(np.argmin(finite))]


def _train(climber: Climber, problem: Problem, settings: Settings, recipe: Recipe) -> _Trained:
    begin = time.perf_counter()
    points = starts(problem, "report", settings.num_seeds)
    losses = np.asarray(climber.fit(points, recipe).losses)
    each = climber.seconds_per_iteration(points, recipe)
    return _Trained(recipe, losses, each, time.perf_counter() - begin)


def _records(
    problem: Problem, protocol: Protocol, settings: Settings, trained: Sequence[_Trained]
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
    """The last iteration that so many gradients pay for."""
    return max(0, num_gradients // gradients_per_iteration - 1)


def _recorder(
    problem: Problem, protocol: Protocol, settings: Settings, trained: _Trained, best: float
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
