"""Natural-gradient variational inference with a normal."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.gaussian.evaluation import Evaluate, WhiteEvaluation
from relbo.gaussian.search import local_normal, unexplained_parts
from relbo.gaussian.starts import distinct_starts
from relbo.gaussian.whitening import WhiteningNormal

DENSE_LIMIT = 200
"""The largest dimension in which all correlations are learned."""

PATIENCE = 8
"""Steps without a clear gain after which a fit hands over to the chains."""
MIN_LOG_MASS = -7.0
"""Modes are kept whose ELBO is not lower than that of the best by more than this."""
MIN_DISTANCE = 4.0
"""Modes differ if one is this many standard deviations of the other away."""
MIN_LOG_RATIO = 1.0
"""Modes differ if the logarithms of their scales differ by this on average."""

CONVERGED = 0.4
"""A fit whose steps are shorter, in standard deviations, has converged."""

WINDOW, MAX_WINDOWS, MIN_RISE = 12, 20, 0.2
"""The fit continues while the mean ELBO of this number of steps rises by this many nats."""
RATE = 0.5
"""How far such a step goes; whole steps are noisier and are taken back more often."""

Report = Callable[[str, float], None]
"""Takes the name of a phase and the fraction of it that is done."""


class NormalFit(NamedTuple):
    """Normals fitted from several starting points, the one with the highest ELBO first."""

    modes: list[WhiteningNormal]
    converged: bool
    """Whether the fit of the first one converged."""
    is_complete: bool
    """Whether every basin that was seen was followed."""


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
        num_points: evaluations per step, a multiple of `batch_size`.
        batch_size: the number of points that `evaluate` takes at once.
        report: called with the progress.
        is_late: whether the time is up.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        evaluate: Evaluate,
        size: int,
        num_points: int,
        batch_size: int,
        *,
        report: Report = lambda *_: None,
        is_late: Callable[[], bool] = lambda: False,
    ):
        self._rng, self._evaluate, self._size = rng, evaluate, size
        self._num_points, self._batch_size = num_points, batch_size
        self._report, self._is_late = report, is_late

    def fit(self, start: Float[np.ndarray, " d"] | None = None) -> NormalFit:
        """Fits from several points, one in each basin of the density.

        Args:
            start: the first of the points; by default zero in unconstrained space.
        """
        first = np.zeros(self._size) if start is None else start
        is_dense = self._size <= DENSE_LIMIT
        starts = distinct_starts(self._rng, self._evaluate, first, self._batch_size, is_dense)
        fits = [self._until_converged(self._first_step(starts.points[0]), PATIENCE)]
        # A fit that goes astray may begin below the only summit.
        is_astray = len(starts.points) == 1 and not fits[0].shift < CONVERGED
        others = [starts.summit] if is_astray else starts.points[1:]
        fits += self._fits_from(map(self._near, others))
        if is_dense and not self._is_late():
            best = max(fits, key=lambda fit: fit.elbo)
            parts = unexplained_parts(
                self._rng,
                self._evaluate,
                self._batch_size,
                best.before,
                best.elbo + 0.5 * self._size,
                starts.summit,
                starts.points,
            )
            fits += self._fits_from(parts)
        best, *others = sorted(fits, key=lambda fit: -fit.elbo)
        converged = best.shift < CONVERGED
        for rate in np.geomspace(0.7, 0.1, 8):
            if self._is_late():
                break
            best = self._step(best, float(rate))
        modes = [best.before]
        for fit in others:
            if fit.elbo > best.elbo + MIN_LOG_MASS and is_apart(fit.before, modes):
                modes.append(fit.before)
        self._report("fit", 1.0)
        return NormalFit(modes, converged, starts.is_complete)

    def _near(self, point: Float[np.ndarray, " d"]) -> WhiteningNormal:
        if self._size > DENSE_LIMIT:
            return narrow_normal(point)
        return local_normal(self._evaluate, self._batch_size, point)

    def _fits_from(self, starts: Iterable[WhiteningNormal]) -> list[FitState]:
        return [
            self._until_converged(self._step(FitState(start, start), 1.0), PATIENCE // 3)
            for start in starts
            if not self._is_late()
        ]

    def _until_converged(self, fit: FitState, patience: int) -> FitState:
        """Steps until they are short, or the ELBO has not grown for a while."""
        best, since = fit.elbo, 0
        for turn in range(200):
            fit = self._step(fit, 1.0)
            since = 0 if fit.elbo > best + 1.0 else since + 1
            best = max(best, fit.elbo)
            self._report("fit", min(turn / 50, 0.9))
            if fit.shift < CONVERGED or since > patience or self._is_late():
                break
        return fit

    def _step(self, fit: FitState, rate: float) -> FitState:
        return fit_step(self._rng, self._evaluate, self._num_points, fit, rate)

    def _random_start(self) -> Float[np.ndarray, " d"]:
        return self._rng.uniform(-2.0, 2.0, self._size)

    def _first_step(self, start: Float[np.ndarray, " d"]) -> FitState:
        for attempt in range(20):
            if attempt > 0:
                start = self._random_start()
            narrow = narrow_normal(start)
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


def is_apart(normal: WhiteningNormal, others: list[WhiteningNormal]) -> bool:
    """Whether a normal is far from all others, or much narrower or wider."""
    distance = lambda one, other: np.max(np.abs(one.pull(other.loc[None])))
    return all(
        max(distance(normal, other), distance(other, normal)) > MIN_DISTANCE
        or abs(normal.log_det - other.log_det) > MIN_LOG_RATIO * len(normal.loc)
        for other in others
    )


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


def continued_fit(
    rng: np.random.Generator,
    evaluate: Evaluate,
    batch_size: int,
    normal: WhiteningNormal,
    *,
    is_late: Callable[[], bool] = lambda: False,
) -> WhiteningNormal:
    """Continues a natural-gradient fit for as long as the ELBO rises.

    Along a ridge its steps are short, and the fit would end, long before its top.
    """
    number = points_per_step(batch_size, len(normal.loc))
    fit, before = FitState(normal, normal), -np.inf
    for _ in range(MAX_WINDOWS):
        elbos = []
        for _ in range(WINDOW):
            fit = fit_step(rng, evaluate, number, fit, RATE)
            elbos.append(fit.elbo)
        now = float(np.mean(elbos))
        if not now > before + MIN_RISE or is_late():
            break
        before = now
    for rate in np.geomspace(0.5, 0.1, WINDOW):
        fit = fit_step(rng, evaluate, number, fit, float(rate))
    return fit.before


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
