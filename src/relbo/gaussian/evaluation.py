"""Evaluates a model in white coordinates: the one program that is compiled."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from relbo.gaussian.factors import JaxFactor, times
from relbo.gaussian.whitening import Dependence, WhiteningNormal
from relbo.problem import Problem


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


@jax.jit
def evaluate_white(
    problem: Problem, whitening: WhiteningMap, white: Float[Array, "c d"]
) -> tuple[Float[Array, " c"], Float[Array, "c d"]]:
    """Computes the log density and the score in white coordinates.

    A log density of NaN becomes minus infinity.
    """
    logdensity = lambda white: white_logdensity(problem, whitening, white)
    values, scores = jax.vmap(jax.value_and_grad(logdensity))(white)
    return jnp.where(jnp.isnan(values), -jnp.inf, values), scores


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
