"""Where a fit starts: seeds, and a normal fitted by natural gradients."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key, PRNGKeyArray
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
)

from relbo.core.checks import check_bool, check_integer
from relbo.gaussian import NormalFitter, WhiteningNormal, compiled_evaluate, points_per_step
from relbo.problem import Problem, read
from relbo.problem.call import Call
from relbo.problem.plates import FixedMinibatch, ModelWithPlates
from relbo.problem.refusals import SubsampledPlatesError
from relbo.problem.traces import Model, has_local_sites, initial_run
from relbo.training.data import TrainingData
from relbo.training.optimiser import normal_base
from relbo.training.program import Program
from relbo.training.update import InitialValues

NUM_POINTS = 64
Values = dict[str, ArrayLike]


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
    base = normal_base(program.guide)
    if base is None or base.create_plates is not None:
        return {}
    problem = _problem_of(program.model, data.first_call)
    if problem is None:
        return {}
    locations = [f"{base.prefix}_loc"]
    if not isinstance(base, AutoContinuous):
        locations = [f"{name}_{base.prefix}_loc" for name, _ in problem.sites]
    positions = _positions(base, problem)
    found = []
    for seed, key in enumerate(keys):
        start = np.concatenate([np.ravel(initial.params[name][seed]) for name in locations])
        start = start.astype(float)[np.argsort(positions)]
        normal = _fitted_normal(key, problem, start, report, deadline)
        if normal is None:
            return {}
        found.append(_parameters(base, problem, normal.reordered(positions)))
    return jax.tree.map(lambda *x: np.stack(x), *found)


def _problem_of(model: Model, call: Call) -> Problem | None:
    """Reads a model, with one minibatch if it subsamples its data; `None` if it cannot be."""
    try:
        return read(model, *call)
    except SubsampledPlatesError:
        if has_local_sites(initial_run(model, call)):
            return None
        # Its posterior has the right scales, and a mean that training corrects.
        return _problem_of(ModelWithPlates(model, FixedMinibatch), call)
    except ValueError:
        # Free parameters or discrete sites: there is no density to fit.
        return None


def _fitted_normal(
    key: PRNGKeyArray,
    problem: Problem,
    start: Float[np.ndarray, " d"],
    report: Callable[..., None],
    deadline: float,
) -> WhiteningNormal | None:
    """Fits a normal from several places, `start` among them; `None` if none was found."""
    fitter = NormalFitter(
        np.random.default_rng(np.ravel(jr.key_data(key)).tolist()),
        compiled_evaluate(problem, NUM_POINTS),
        problem.size,
        points_per_step(NUM_POINTS, problem.size),
        NUM_POINTS,
        report=lambda _, fraction: report("warm start", fraction),
        is_late=lambda: time.monotonic() > deadline,
    )
    try:
        normal = fitter.fit(start).modes[0]
    except (ValueError, np.linalg.LinAlgError):
        return None
    is_finite = np.all(np.isfinite(normal.loc)) and np.all(np.isfinite(normal.factor))
    return normal if is_finite else None


def _parameters(base: Any, problem: Problem, normal: WhiteningNormal) -> Values:
    """Converts a normal to constrained parameters of a guide's base."""
    prefix, dtype = base.prefix, jnp.result_type(float)
    loc = jnp.asarray(normal.loc, dtype)
    if isinstance(base, AutoMultivariateNormal):
        tril = jnp.asarray(normal.scale_tril(), dtype)
        return {f"{prefix}_loc": loc, f"{prefix}_scale_tril": tril}
    scale = jnp.asarray(normal.conditional_sd(), dtype)
    if isinstance(base, AutoDiagonalNormal):
        return {f"{prefix}_loc": loc, f"{prefix}_scale": scale}
    return {
        f"{name}_{prefix}_{part}": value
        for part, vector in (("loc", loc), ("scale", scale))
        for name, value in problem.unravel(vector).items()
    }


def _positions(base: Any, problem: Problem) -> np.ndarray:
    """Returns the index of each entry of the base's vector in the problem's vector."""
    if not isinstance(base, AutoContinuous):
        return np.arange(problem.size)
    places = base._unpack_latent(jnp.arange(problem.size, dtype=float))
    ours = np.concatenate([np.ravel(places[name]) for name, _ in problem.sites])
    return np.argsort(ours.round().astype(int))
