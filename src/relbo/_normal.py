"""A normal fitted to a density by natural gradients, and its refined draws, on the host.

All of it is NumPy in double precision around one function that evaluates the model at many
points: there is nothing to compile, and coordinates of very different scales do no harm.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Normal(NamedTuple):
    """z = loc + factor u; the factor is a matrix, or a vector where it is diagonal."""

    loc: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]

    @property
    def is_dense(self) -> bool:
        return self.factor.ndim == 2

    @property
    def log_det(self) -> float:
        if self.is_dense:
            return float(np.linalg.slogdet(self.factor)[1])
        return float(np.sum(np.log(np.abs(self.factor))))

    def push(self, white: np.ndarray) -> np.ndarray:
        return self.loc + self._times(white)

    def pull(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        centred = points - self.loc
        if self.is_dense:
            return np.linalg.solve(self.factor, centred.T).T
        return centred / self.factor

    def moved(self, shift: Float[np.ndarray, " d"], by: np.ndarray) -> "Normal":
        """The normal of loc + factor (shift + by u')."""
        factor = self.factor @ by if self.is_dense else self.factor * by
        return Normal(self.loc + self._times(shift), factor)

    def _times(self, white: np.ndarray) -> np.ndarray:
        return white @ self.factor.T if self.is_dense else white * self.factor


class Evaluation(NamedTuple):
    """What a model says at points in white coordinates."""

    white: Float[np.ndarray, "c d"]
    logdensity: Float[np.ndarray, " c"]
    score: Float[np.ndarray, "c d"]

    @property
    def is_finite(self) -> Bool[np.ndarray, " c"]:
        return np.isfinite(self.logdensity) & np.all(np.isfinite(self.score), 1)


Evaluate = Callable[[Normal, np.ndarray], Evaluation]
"""Takes a normal and points in its white coordinates."""


class Fit(NamedTuple):
    """A step of the fit, and what is needed to take it back."""

    normal: Normal
    before: Normal
    elbo: float = -np.inf
    trust: float = 1.0
    """How far a step may go: 10 times so many standard deviations."""
    shift: float = np.inf
    """How far the last one went, in standard deviations or in logarithms of them."""


def fit_step(
    rng: np.random.Generator, evaluate: Evaluate, num_points: int, fit: Fit, rate: float
) -> Fit:
    """One step of natural-gradient variational inference with a normal.

    The optimum of the ELBO has E[g] = 0 and the precision -E[H]. Both expectations come from a
    linear regression of the scores on the draws: exact where the score is linear, shrunk to
    the present normal in directions that the draws do not span, and the same whatever affine
    map the model is looked at through. A step too far is taken back.
    """
    half = rng.standard_normal((num_points // 2, len(fit.normal.loc)))
    here = evaluate(fit.normal, np.concatenate([half, -half]))
    elbo, noise = _elbo(fit.normal, here)
    if not elbo >= fit.elbo - 3.0 * noise - 0.1 or elbo == -np.inf:
        return fit._replace(normal=fit.before, trust=max(fit.trust / 4, 1e-3), shift=np.inf)
    moved, shift = _natural_step(fit.normal, here, rate, fit.trust)
    return Fit(moved, fit.normal, elbo, min(2 * fit.trust, 1e5), shift)


def _elbo(normal: Normal, here: Evaluation) -> tuple[float, float]:
    """The ELBO up to a constant, and its standard error.

    By medians, since far away a mean is that of one draw; minus infinity off the support.
    """
    values = here.logdensity[here.is_finite]
    number = len(here.white)
    if 4 * len(values) < 3 * number:
        return -np.inf, 0.0
    middle = float(np.median(values))
    spread = 1.5 * float(np.median(np.abs(values - middle)))
    return middle + normal.log_det, spread / number**0.5


def _natural_step(
    normal: Normal, here: Evaluation, rate: float, trust: float
) -> tuple[Normal, float]:
    white, odd, even = _pairs(here)
    mean_score = np.mean(even, 0)
    if normal.is_dense:
        eye = np.eye(white.shape[1])
        excess = np.linalg.solve(white.T @ white + eye, white.T @ (odd + white))
        curvature, axes = np.linalg.eigh(eye - 0.5 * (excess + excess.T))
        along = axes.T @ mean_score
    else:
        excess = np.sum((odd + white) * white, 0) / (np.sum(white**2, 0) + 1.0)
        curvature, axes, along = 1.0 - excess, None, mean_score
    shift = rate * along / np.maximum(curvature, 0.2)
    shift = shift * min(1.0, 10 * trust / max(float(np.linalg.norm(shift)), 1e-300))
    precision = 1.0 + rate * min(trust, 1.0) * (np.clip(curvature, 0.2, 100.0) - 1.0)
    by = precision**-0.5
    change = max(np.max(np.abs(shift)), np.max(np.abs(np.log(precision))))
    if axes is None:
        return normal.moved(shift, by), float(change)
    return normal.moved(axes @ shift, axes * by), float(change)


def _pairs(here: Evaluation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half of the draws, and the odd and even parts of their scores."""
    half = len(here.white) // 2
    fine = here.is_finite
    fine = fine[:half] & fine[half:]
    plus, minus = here.score[:half][fine], here.score[half:][fine]
    return here.white[:half][fine], 0.5 * (plus - minus), 0.5 * (plus + minus)


def normal_of_draws(normal: Normal, white: Float[np.ndarray, "n d"]) -> tuple[Normal, float]:
    """The normal with the moments of draws, and how far it is from the present one."""
    number, size = white.shape
    mean = np.mean(white, 0)
    # As if so many draws of the present normal had been seen besides.
    prior = 5.0 + 0.1 * size
    if normal.is_dense:
        centred = white - mean
        covariance = (centred.T @ centred + prior * np.eye(size)) / (number + prior)
        by = np.linalg.cholesky(covariance)
        variances = np.diagonal(covariance)
    else:
        variances = (np.sum((white - mean) ** 2, 0) + prior) / (number + prior)
        by = np.sqrt(variances)
    shift = max(np.max(np.abs(mean)), 0.5 * np.max(np.abs(np.log(variances))))
    return normal.moved(mean, by), float(shift)


def refined_draws(
    rng: np.random.Generator,
    evaluate: Evaluate,
    normal: Normal,
    *,
    num_points: int,
    num_steps: int,
    step_size: float,
    damping: float = 0.9,
) -> tuple[Float[np.ndarray, "c d"], Float[np.ndarray, " c"]]:
    r"""Draws of the normal after annealed underdamped steps, and the logs of their weights.

    The same walk as `relbo.Refinement` with `Underdamped`, `ReverseKernel` and an annealed
    path, in white coordinates: the weights average to the evidence.
    """
    white = rng.standard_normal((num_points, len(normal.loc)))
    momentum = rng.standard_normal(white.shape)
    log_weight = 0.5 * np.sum(white**2 + np.log(2 * np.pi), 1) + normal.log_det
    here = evaluate(normal, white)
    for step in range(1, num_steps + 1):
        beta = step / num_steps
        force = lambda at, beta=beta: beta * at.score - (1 - beta) * at.white
        log_weight = log_weight + 0.5 * np.sum(momentum**2, 1)
        momentum = momentum + 0.5 * step_size * force(here)
        here = evaluate(normal, here.white + step_size * momentum)
        momentum = momentum + 0.5 * step_size * force(here)
        log_weight = log_weight - 0.5 * np.sum(momentum**2, 1)
        fresh = rng.standard_normal(white.shape)
        momentum = damping * momentum + (1 - damping**2) ** 0.5 * fresh
    log_weight = np.where(here.is_finite, log_weight + here.logdensity, -np.inf)
    return normal.push(here.white), np.where(np.isnan(log_weight), -np.inf, log_weight)
