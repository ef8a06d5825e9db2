"""A normal fitted by natural gradients, as initial parameters of a guide's base."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, Float, Int, PRNGKeyArray
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from relbo.gaussian import (
    Evaluate,
    LowRankFactor,
    NormalFitter,
    Report,
    WhiteningNormal,
    compiled_evaluate,
    continued_fit,
    points_per_step,
    stretched_normal,
)
from relbo.gaussian.moments import choose_parents
from relbo.guides.bent_normal import AutoBentNormal
from relbo.guides.stretched_normal import AutoStretchedNormal
from relbo.problem import Problem, read
from relbo.problem.call import Call
from relbo.problem.plates import FixedMinibatch, ModelWithPlates
from relbo.problem.refusals import SubsampledPlatesError
from relbo.problem.traces import Model, has_local_sites, initial_run

NUM_POINTS = 64
NUM_DRAWS = 1024
"""Draws in which it is looked for coordinates that others depend on."""
KINDS = (
    AutoBentNormal,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoStretchedNormal,
)
"""Guides that are normals, or nearly."""
Values = dict[str, ArrayLike]


def normal_base(guide: Any) -> Any:
    """Returns the normal that a guide is or contains, or `None`."""
    base = getattr(guide, "base", guide)
    return base if type(base) in KINDS else None


def can_start_warm(guide: Any) -> bool:
    """Returns whether a guide has a normal base without plates of its own."""
    base = normal_base(guide)
    return base is not None and base.create_plates is None


def density_of(model: Model, call: Call) -> Problem | None:
    """Reads a model, with one minibatch if it subsamples its data; `None` if it cannot be."""
    try:
        return read(model, *call)
    except SubsampledPlatesError:
        if has_local_sites(initial_run(model, call)):
            return None
        # Its posterior has the right scales, and a mean that training corrects.
        return density_of(ModelWithPlates(model, FixedMinibatch), call)
    except ValueError:
        # With free parameters or discrete sites a model has no density that a normal could fit.
        return None


def warm_params(
    key: PRNGKeyArray,
    guide: Any,
    problem: Problem,
    params: Values,
    *,
    report: Report = lambda *_: None,
    is_late: Callable[[], bool] = lambda: False,
) -> Values | None:
    """Fits a normal from where a guide's base would have started.

    Args:
        key: a random key.
        guide: a guide with a normal base.
        problem: the density.
        params: initial parameters; the locations of the base are used.
        report: called with the progress.
        is_late: whether the time is up.

    Returns:
        Constrained values of the base's parameters; `None` if no normal was found.
    """
    base = normal_base(guide)
    rng = np.random.default_rng(np.ravel(jr.key_data(key)).tolist())
    evaluate = compiled_evaluate(problem, NUM_POINTS)
    positions = _positions(base, problem)
    start = _start(base, problem, params)[np.argsort(positions)]
    fitter = NormalFitter(
        rng,
        evaluate,
        problem.size,
        points_per_step(NUM_POINTS, problem.size),
        NUM_POINTS,
        report=report,
        is_late=is_late,
    )
    try:
        normal = fitter.fit(start).modes[0]
        if isinstance(base, AutoStretchedNormal):
            normal = stretched_normal(rng, evaluate, NUM_POINTS, normal, is_late=is_late)
        else:
            normal = continued_fit(rng, evaluate, NUM_POINTS, normal, is_late=is_late)
    except (ValueError, np.linalg.LinAlgError):
        return None
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(normal)):
        return None
    if not isinstance(base, AutoBentNormal):
        return _parameters(base, problem, normal.reordered(positions))
    parents = _parents(rng, evaluate, normal)
    order = parents_first(parents, positions[base.program_order()])
    place = np.argsort(np.argsort(positions)[order])
    values = _parameters(base, problem, normal.reordered(order))
    return {**values, f"{base.prefix}_place": jnp.asarray(place, jnp.result_type(float))}


def parents_first(
    parents: Int[np.ndarray, " p"], order: Int[np.ndarray, " d"]
) -> Int[np.ndarray, " d"]:
    """Returns an order with some entries moved to the front."""
    is_parent = np.isin(order, parents)
    return np.concatenate([order[is_parent], order[~is_parent]])


def _parents(
    rng: np.random.Generator, evaluate: Evaluate, normal: WhiteningNormal
) -> Int[np.ndarray, " p"]:
    """Returns the coordinates that the scales or locations of others depend on."""
    here = evaluate(normal, rng.standard_normal((NUM_DRAWS, len(normal.loc))))
    white, score = here.white[here.is_finite], here.score[here.is_finite]
    if len(white) < NUM_DRAWS // 2 or len(normal.loc) < 2:
        return np.zeros(0, np.int32)
    points, score = normal.push(white), normal.score(white, score)
    scale = points.std(0)
    return choose_parents((points - points.mean(0)) / scale, score * scale)


def _start(base: Any, problem: Problem, params: Values) -> Float[np.ndarray, " d"]:
    """Returns the initial location in the order of the base's latent vector."""
    names = [f"{base.prefix}_loc"]
    if not isinstance(base, AutoContinuous):
        names = [f"{name}_{base.prefix}_loc" for name, _ in problem.sites]
    loc = np.concatenate([np.ravel(np.asarray(params[name], float)) for name in names])
    if isinstance(base, AutoBentNormal):
        loc = loc[np.asarray(params[f"{base.prefix}_place"]).round().astype(int)]
    return loc


def _parameters(base: Any, problem: Problem, normal: WhiteningNormal) -> Values:
    """Converts a normal to constrained parameters of a guide's base."""
    prefix, dtype = base.prefix, jnp.result_type(float)
    loc = jnp.asarray(normal.loc, dtype)
    if isinstance(base, AutoMultivariateNormal | AutoBentNormal):
        tril = jnp.asarray(normal.scale_tril(), dtype)
        return {f"{prefix}_loc": loc, f"{prefix}_scale_tril": tril}
    factor = normal.factor
    if isinstance(factor, LowRankFactor):
        parts = {"scale": factor.scale, "axes": factor.axes, "stretch": factor.stretch}
        values = {f"{prefix}_{name}": jnp.asarray(v, dtype) for name, v in parts.items()}
        return {f"{prefix}_loc": loc, **values}
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
