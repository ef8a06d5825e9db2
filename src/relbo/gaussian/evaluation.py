"""Evaluates a model in white coordinates: the one program that is compiled."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun, subjaxprs
from jaxtyping import Array, Bool, Float, Scalar

from relbo.gaussian.factors import JaxFactor, times
from relbo.gaussian.whitening import Dependence, WhiteningNormal
from relbo.problem import Problem

CACHE_BYTES = 2**19
"""What all points together may take before they are evaluated in groups."""
MIN_GROUP, MAX_GROUP = 4, 8
"""Points in a group. In groups of 8 five heavy models took 0.35 to 0.8 of the time that 64
points at once took, and smaller groups gained nothing."""


class WhiteEvaluation(NamedTuple):
    """The log density and the score at points in white coordinates."""

    white: Float[np.ndarray, "c d"]
    logdensity: Float[np.ndarray, " c"]
    score: Float[np.ndarray, "c d"]

    @property
    def is_finite(self) -> Bool[np.ndarray, " c"]:
        return np.isfinite(self.logdensity) & np.all(np.isfinite(self.score), 1)


Evaluate = Callable[[WhiteningNormal, np.ndarray], WhiteEvaluation]
"""Takes a normal and points in its white coordinates."""


class WhiteningMap(NamedTuple):
    """A `WhiteningNormal` as an argument of a compiled program."""

    loc: Float[Array, " d"]
    factor: JaxFactor
    dependence: Dependence | None
    """`None` compiles faster."""


def whitening_map(normal: WhiteningNormal, dtype: np.dtype) -> WhiteningMap:
    """Converts a normal to the precision of the compiled program."""
    reals = lambda value: np.asarray(value, dtype)
    dependence = normal.dependence
    if dependence is not None:
        parents = np.asarray(dependence.parents, np.int32)
        dependence = Dependence(parents, *map(reals, dependence[1:]))
    loc, factor = jax.tree.map(reals, normal[:2])
    return WhiteningMap(loc, factor, dependence)  # type: ignore[arg-type]


def white_logdensity(
    problem: Problem, whitening: WhiteningMap, white: Float[Array, " d"]
) -> Scalar:
    """Computes the log density in white coordinates.

    The Jacobian of the affine part of the map is left out.
    """
    loc, factor, dependence = whitening
    bent, log_det = (white, 0.0) if dependence is None else dependence.bend(white)
    return problem.logdensity(loc + times(factor, bent)) + log_det


@functools.partial(jax.jit, static_argnames=("in_groups",))
def evaluate_white(
    problem: Problem,
    whitening: WhiteningMap,
    white: Float[Array, "c d"],
    *,
    in_groups: bool = True,
) -> tuple[Float[Array, " c"], Float[Array, "c d"]]:
    """Computes the log density and the score in white coordinates.

    A log density of NaN becomes minus infinity.

    Args:
        problem: the posterior.
        whitening: maps white to unconstrained coordinates.
        white: points in white coordinates.
        in_groups: whether points may be evaluated a few at a time; not if they are spread over
            devices.
    """
    logdensity = lambda white: white_logdensity(problem, whitening, white)
    traced = jax.make_jaxpr(jax.value_and_grad(logdensity))(white[0])
    one = jaxpr_as_fun(traced)
    group = _group_size(traced, *white.shape) if in_groups else len(white)
    if group < len(white):
        values, scores = jax.lax.map(lambda point: one(point), white, batch_size=group)
    else:
        values, scores = jax.vmap(one)(white)
    return jnp.where(jnp.isnan(values), -jnp.inf, values), scores


def _group_size(traced: ClosedJaxpr, number: int, size: int) -> int:
    """Returns how many points to evaluate at once, so that what is computed stays in the cache.

    If one point takes hardly more numbers than it has coordinates, groups do not pay.
    """
    largest = _largest_output(traced.jaxpr)
    itemsize = traced.in_avals[0].dtype.itemsize  # type: ignore[attr-defined]
    if largest < 4 * size or largest * number * itemsize <= CACHE_BYTES:
        return number
    divisors = [group for group in range(1, MAX_GROUP + 1) if number % group == 0]
    return divisors[-1] if divisors[-1] >= MIN_GROUP else number


def _largest_output(jaxpr: Jaxpr) -> int:
    """Returns the number of elements of the largest array that a program computes."""
    shaped = [out.aval for step in jaxpr.eqns for out in step.outvars]
    outputs = [math.prod(getattr(output, "shape", ())) for output in shaped]
    inner = [_largest_output(part) for part in subjaxprs(jaxpr)]
    return max([*outputs, *inner], default=0)


def compiled_evaluate(problem: Problem, batch_size: int) -> Evaluate:
    """Returns a function that evaluates a problem, `batch_size` points at a time."""
    dtype = np.dtype(jnp.result_type(float))

    def evaluate(normal: WhiteningNormal, white: np.ndarray) -> WhiteEvaluation:
        whitening = whitening_map(normal, dtype)
        parts = []
        for batch in np.split(white.astype(dtype), len(white) // batch_size):
            parts.append((batch, *evaluate_white(problem, whitening, batch)))
        columns = zip(*parts, strict=True)
        return WhiteEvaluation(*(np.concatenate(c).astype(float) for c in columns))

    return evaluate
