"""A normal fitted to a density by natural gradients, and annealed draws from it, on the host.

Everything is NumPy in double precision around one function that evaluates the model at many
points: nothing is compiled, and coordinates of very different scales do no harm.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from relbo.core.bases import AbstractNormal, DiagonalNormal, MultivariateNormal
from relbo.core.dynamics import end_leapfrog, log_weight_increment, refresh, start_leapfrog
from relbo.problem import Problem

DENSE_LIMIT = 200
"""The largest dimension in which all correlations are learned."""

NUM_EXTRA_STARTS = {30: 3, DENSE_LIMIT: 1}
"""Further fits from random points, by the largest dimension: they look for other modes."""

CONVERGED = 0.4
"""A fit whose steps are shorter, in standard deviations, has converged."""

Report = Callable[[str, float], None]
"""Takes the name of a phase and the fraction of it that is done."""


class WhiteningNormal(NamedTuple):
    """A normal z = loc + factor u; the factor is a matrix, or a vector if it is diagonal."""

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

    def moved(self, shift: Float[np.ndarray, " d"], by: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of loc + factor (shift + by u')."""
        factor = self.factor @ by if self.is_dense else self.factor * by
        return WhiteningNormal(self.loc + self._times(shift), factor)

    def conditional_sd(self) -> Float[np.ndarray, " d"]:
        """Returns the standard deviation of each coordinate given all others.

        It is the scale of the best mean-field normal.
        """
        if not self.is_dense:
            return np.abs(self.factor)
        return 1.0 / np.linalg.norm(np.linalg.inv(self.factor), axis=0)

    def scale_tril(self) -> Float[np.ndarray, "d d"]:
        """Returns the lower Cholesky factor of the covariance."""
        if not self.is_dense:
            return np.diag(np.abs(self.factor))
        # By QR, since forming the covariance would square the condition number.
        upper = np.asarray(np.linalg.qr(self.factor.T, mode="r"))
        return upper.T * np.sign(np.diagonal(upper))

    def to_base(self) -> AbstractNormal:
        """Returns the same normal as a base of a refinement, in JAX's precision."""
        loc = jnp.asarray(self.loc)
        if self.is_dense:
            return MultivariateNormal(loc, jnp.asarray(self.scale_tril()))
        return DiagonalNormal(loc, jnp.asarray(np.abs(self.factor)))

    def reordered(self, order: np.ndarray) -> "WhiteningNormal":
        """Returns the normal of the coordinates in another order."""
        return WhiteningNormal(self.loc[order], self.factor[order])

    def _times(self, white: np.ndarray) -> np.ndarray:
        return white @ self.factor.T if self.is_dense else white * self.factor


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


@jax.jit
def evaluate_white(
    problem: Problem,
    loc: Float[Array, " d"],
    factor: Float[Array, "d d"] | Float[Array, " d"],
    white: Float[Array, "c d"],
) -> tuple[Float[Array, " c"], Float[Array, "c d"]]:
    """Computes the log density and the score in white coordinates, z = loc + factor u.

    The Jacobian of the affine map is left out. A log density of NaN becomes minus infinity.
    """
    is_dense = factor.ndim == 2
    moved = white @ factor.T if is_dense else white * factor[None]
    values, scores = jax.vmap(jax.value_and_grad(problem.logdensity))(loc[None] + moved)
    scores = scores @ factor if is_dense else scores * factor[None]
    return jnp.where(jnp.isnan(values), -jnp.inf, values), scores


def compiled_evaluate(problem: Problem, batch_size: int) -> Evaluate:
    """Returns a function that evaluates a problem, `batch_size` points at a time."""
    dtype = np.dtype(jnp.result_type(float))

    def evaluate(normal: WhiteningNormal, white: np.ndarray) -> WhiteEvaluation:
        loc, factor = (np.asarray(part, dtype) for part in (normal.loc, normal.factor))
        parts = []
        for batch in np.split(white.astype(dtype), len(white) // batch_size):
            parts.append((batch, *evaluate_white(problem, loc, factor, batch)))
        columns = zip(*parts, strict=True)
        return WhiteEvaluation(*(np.concatenate(c).astype(float) for c in columns))

    return evaluate


class NormalFit(NamedTuple):
    """Normals fitted from several starting points."""

    normal: WhiteningNormal
    """The one with the highest ELBO."""
    rivals: list[WhiteningNormal]
    """Those that ended elsewhere with a mass that counts: other modes."""
    converged: bool


class FitState(NamedTuple):
    """One fit after a step, with what is needed to undo the step."""

    normal: WhiteningNormal
    before: WhiteningNormal
    elbo: float = -np.inf
    trust: float = 1.0
    """The longest step allowed, in units of 10 standard deviations."""
    shift: float = np.inf
    """The length of the last step, in standard deviations or logarithms of them."""


class NormalFitter:
    """Fits a normal to a log density by natural-gradient variational inference.

    Args:
        rng: the source of all noise.
        evaluate: the model.
        size: the number of coordinates.
        num_points: evaluations per step, a multiple of what `evaluate` takes at once.
        report: called with the progress.
        is_late: whether the time is up.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        evaluate: Evaluate,
        size: int,
        num_points: int,
        *,
        report: Report = lambda *_: None,
        is_late: Callable[[], bool] = lambda: False,
    ):
        self._rng, self._evaluate, self._size = rng, evaluate, size
        self._num_points, self._report, self._is_late = num_points, report, is_late

    def fit(self, start: Float[np.ndarray, " d"] | None = None) -> NormalFit:
        """Fits from several points and keeps the best, with its rivals.

        Args:
            start: the first of the points; by default zero in unconstrained space.
        """
        fits = [self._until_converged(self._first_step(start))]
        for _ in range(next((n for d, n in NUM_EXTRA_STARTS.items() if self._size <= d), 0)):
            if not self._is_late():
                fits.append(self._until_converged(self._first_step(self._random_start())))
        best = max(fits, key=lambda fit: fit.elbo)
        converged = best.shift < CONVERGED
        for rate in np.geomspace(0.7, 0.1, 12):
            best = self._step(best, float(rate))
        normal = best.before
        rivals = [fit.before for fit in fits if _is_rival(fit, best, normal)]
        self._report("fit", 1.0)
        return NormalFit(normal, rivals, converged)

    def _until_converged(self, fit: FitState) -> FitState:
        """Steps until they are short, or the ELBO has not grown for a while."""
        best, since = fit.elbo, 0
        for turn in range(200):
            fit = self._step(fit, 1.0)
            since = 0 if fit.elbo > best + 1.0 else since + 1
            best = max(best, fit.elbo)
            self._report("fit", min(turn / 50, 0.9))
            if fit.shift < CONVERGED or since > 20 or self._is_late():
                break
        return fit

    def _step(self, fit: FitState, rate: float) -> FitState:
        return fit_step(self._rng, self._evaluate, self._num_points, fit, rate)

    def _random_start(self) -> Float[np.ndarray, " d"]:
        return self._rng.uniform(-2.0, 2.0, self._size)

    def _first_step(self, start: Float[np.ndarray, " d"] | None) -> FitState:
        for attempt in range(20):
            if attempt > 0:
                start = self._random_start()
            narrow = narrow_normal(np.zeros(self._size) if start is None else start)
            fit = self._step(FitState(narrow, narrow), 1.0)
            if np.isfinite(fit.elbo):
                return fit
        raise ValueError(
            "the log density is not finite at any of 20 starting points: check the data for "
            "NaN and the model for values off its support, or start from a guide whose "
            "init_loc_fn knows where"
        )


def narrow_normal(loc: Float[np.ndarray, " d"]) -> WhiteningNormal:
    """Returns a narrow normal, from which the first steps of a fit are Newton steps."""
    scales = np.full(len(loc), 0.1)
    return WhiteningNormal(loc, np.diag(scales) if len(loc) <= DENSE_LIMIT else scales)


def points_per_step(num_chains: int, size: int) -> int:
    """Returns a number of points that shows all directions where correlations are learned."""
    if size > DENSE_LIMIT:
        return num_chains
    return num_chains * max(1, -(-5 * size // (2 * num_chains)))


def _is_rival(fit: FitState, best: FitState, normal: WhiteningNormal) -> bool:
    apart = np.max(np.abs(normal.pull(fit.before.loc[None])))
    return bool(apart > 5.0 and fit.elbo > best.elbo - 5.0)


def fit_step(
    rng: np.random.Generator, evaluate: Evaluate, num_points: int, fit: FitState, rate: float
) -> FitState:
    """Takes one step of natural-gradient variational inference with a normal.

    The optimum of the ELBO has E[g] = 0 and the precision -E[H]. Both expectations come from a
    linear regression of the scores on the draws: it is exact for a linear score, shrinks to the
    present normal in directions that the draws do not span, and is invariant under affine maps
    of the model. A step that lowers the ELBO is undone.
    """
    half = rng.standard_normal((num_points // 2, len(fit.normal.loc)))
    here = evaluate(fit.normal, np.concatenate([half, -half]))
    elbo, noise = _elbo(fit.normal, here)
    if not elbo >= fit.elbo - 3.0 * noise - 0.1 or elbo == -np.inf:
        return fit._replace(normal=fit.before, trust=max(fit.trust / 4, 1e-3), shift=np.inf)
    moved, shift = _natural_step(fit.normal, here, rate, fit.trust)
    return FitState(moved, fit.normal, elbo, min(2 * fit.trust, 1e5), shift)


def _elbo(normal: WhiteningNormal, here: WhiteEvaluation) -> tuple[float, float]:
    """Estimates the ELBO up to a constant, with its standard error.

    It uses medians, since one draw dominates a mean far from the mode. It is minus infinity off
    the support.
    """
    values = here.logdensity[here.is_finite]
    number = len(here.white)
    if 4 * len(values) < 3 * number:
        return -np.inf, 0.0
    middle = float(np.median(values))
    spread = 1.5 * float(np.median(np.abs(values - middle)))
    return middle + normal.log_det, spread / number**0.5


def _natural_step(
    normal: WhiteningNormal, here: WhiteEvaluation, rate: float, trust: float
) -> tuple[WhiteningNormal, float]:
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


def _pairs(here: WhiteEvaluation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns half of the antithetic draws, and the odd and even parts of their scores."""
    half = len(here.white) // 2
    fine = here.is_finite
    fine = fine[:half] & fine[half:]
    plus, minus = here.score[:half][fine], here.score[half:][fine]
    return here.white[:half][fine], 0.5 * (plus - minus), 0.5 * (plus + minus)


def normal_of_draws(
    normal: WhiteningNormal, white: Float[np.ndarray, "n d"]
) -> tuple[WhiteningNormal, float]:
    """Returns the normal with the moments of draws, and its distance from the present one."""
    number, size = white.shape
    mean = np.mean(white, 0)
    # The number of draws that the present normal counts for.
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


def annealed_draws(
    rng: np.random.Generator,
    evaluate: Evaluate,
    normal: WhiteningNormal,
    *,
    num_points: int,
    num_steps: int,
    step_size: float,
    damping: float = 0.9,
) -> tuple[Float[np.ndarray, "c d"], Float[np.ndarray, " c"]]:
    r"""Refines draws of the normal by annealed underdamped steps, and weighs them.

    The same path as `relbo.Refinement` with `Underdamped` and `ReverseKernelAccount` takes, in
    white coordinates: the weights average to the evidence.

    Returns:
        The draws, and the logarithms of their weights.
    """
    white = rng.standard_normal((num_points, len(normal.loc)))
    momentum = rng.standard_normal(white.shape)
    log_weight = 0.5 * np.sum(white**2 + np.log(2 * np.pi), 1) + normal.log_det
    here = evaluate(normal, white)
    for step in range(1, num_steps + 1):
        beta = step / num_steps
        moved, after = start_leapfrog(here.white, momentum, _tempered(here, beta), step_size)
        here = evaluate(normal, moved)
        after = end_leapfrog(after, _tempered(here, beta), step_size)
        log_weight = log_weight + log_weight_increment(momentum, after)
        momentum = refresh(after, rng.standard_normal(white.shape), damping)
    log_weight = np.where(here.is_finite, log_weight + here.logdensity, -np.inf)
    return normal.push(here.white), np.where(np.isnan(log_weight), -np.inf, log_weight)


def _tempered(here: WhiteEvaluation, beta: float) -> Float[np.ndarray, "c d"]:
    """Returns the score on the path from the standard normal to the target."""
    return beta * here.score - (1 - beta) * here.white
