"""Normals fitted to draws and scores, with scales that may depend on other coordinates."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from relbo.gaussian.factors import LowRankFactor, rescaled
from relbo.gaussian.fisher import distance_from_white, low_rank_normal, normal_of_draws
from relbo.gaussian.whitening import (
    MAX_PARENTS,
    Dependence,
    WhiteningNormal,
    curve_features,
    scale_features,
)

SIGNIFICANT = 5.0
"""A dependence counts if its slope is this many standard errors from zero."""
SMALLEST_SLOPE = 0.25
"""A dependence counts if it changes a log scale or a location by this much, in units of the
standard deviations of parent and child."""
SMALLEST_SUM = 0.6
"""A parent of many counts if the sum of their squared slopes is this large, even if each is
small: together its children hold it in its place."""
MAX_DRAWS = 4096
"""The largest number of draws that is looked at."""
TAIL = 0.05
"""The share of draws on either side of a parent that are looked at more closely."""
MIN_SPREAD = 3.0
"""Log scales that differ from their median by less are never outliers."""
MAX_SHIFT = 1.0
"""How far from white draws may be in many dimensions before parents are looked for."""
MAX_CANDIDATES = 1000
"""The largest number of coordinates in which parents are looked for."""


def whitening_of_draws(
    normal: WhiteningNormal,
    points: Float[np.ndarray, "n d"],
    score: Float[np.ndarray, "n d"],
) -> tuple[WhiteningNormal, float]:
    """Fits a normal whose scales and locations may depend on a few coordinates.

    The scale of a coordinate that is normal given its parents is the square root of the ratio
    of its distance from the mean to its score, in every draw: no draw has to be where the scale
    is small to show that it is. So a funnel is straightened before any chain has entered it.

    Args:
        normal: the present map.
        points: draws in unconstrained space.
        score: the score there.

    Returns:
        The new map, and how far the draws are from white in the present one.
    """
    white = normal.pull(points)
    standard = _standardised(points, score)
    if standard is None:
        return normal_of_draws(normal, white)
    shift = distance_from_white(white)
    # In many dimensions draws of chains that have hardly moved show parents that are none.
    parents = np.zeros(0, np.int32)
    if normal.is_dense or shift < MAX_SHIFT:
        parents = choose_parents(standard.draws, standard.score)
    if len(parents):
        children = standard.with_tails(points, score, parents)
        found = _with_parents(standard.draws, *children, parents, normal.is_dense)
        # Axes do not cross from parents to children: a gentle dependence is not worth that.
        if not normal.is_dense and not found.has_narrow_places(standard.draws):
            found = low_rank_normal(standard.draws, standard.score)
    elif normal.is_dense and normal.dependence is None:
        # The present normal counts for some draws.
        fine = _finite_rows(points, score)
        return normal_of_draws(normal, white[fine], normal.pulled_score(score[fine]))
    elif normal.is_dense:
        size = points.shape[1]
        start = WhiteningNormal(np.zeros(size), np.eye(size))
        found, _ = normal_of_draws(start, standard.draws, standard.score)
    else:
        found = low_rank_normal(standard.draws, standard.score)
    return found.rescaled(standard.loc, standard.scale), shift


class _Standardised(NamedTuple):
    draws: Float[np.ndarray, "n d"]
    score: Float[np.ndarray, "n d"]
    loc: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    def with_tails(
        self,
        points: Float[np.ndarray, "m d"],
        score: Float[np.ndarray, "m d"],
        parents: Int[np.ndarray, " p"],
    ) -> tuple[Float[np.ndarray, "k d"], Float[np.ndarray, "k d"]]:
        """Returns draws and scores of which up to half are in the tails of the parents.

        What the others are given the parents does not depend on how the parents are chosen, and
        it is in the tails that scales become small.
        """
        fine = _finite_rows(points, score)
        if len(fine) <= MAX_DRAWS:
            return self.draws, self.score
        values = points[np.ix_(fine, parents)]
        low, high = np.quantile(values, [TAIL, 1 - TAIL], 0)
        in_tails = np.flatnonzero(np.any((values < low) | (values > high), 1))
        half = MAX_DRAWS // 2
        some = fine[
            np.union1d(_evenly(len(fine), half), in_tails[_evenly(len(in_tails), half)])
        ]
        return (points[some] - self.loc) / self.scale, score[some] * self.scale


def _finite_rows(
    points: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> Int[np.ndarray, " m"]:
    return np.flatnonzero(np.all(np.isfinite(score), 1) & np.all(np.isfinite(points), 1))


def _evenly(length: int, number: int) -> Int[np.ndarray, " m"]:
    """Returns evenly spaced indices into range(length), all of them if there are few."""
    return np.linspace(0, length - 1, min(number, length)).astype(int)


def _standardised(
    points: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> _Standardised | None:
    """Returns draws with mean 0 and standard deviation 1, or `None` if there are too few."""
    fine = _finite_rows(points, score)
    some = fine[_evenly(len(fine), MAX_DRAWS)]
    points, score = points[some], score[some]
    if len(points) < 100 or points.shape[1] < 2:
        return None
    loc, scale = points.mean(0), points.std(0)
    if not np.all(np.isfinite(scale) & (scale > 0)):
        return None
    return _Standardised((points - loc) / scale, score * scale, loc, scale)


def choose_parents(
    standard: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> Int[np.ndarray, " p"]:
    """Chooses coordinates that the scales or locations of others depend on.

    They are chosen one by one, each the one with the largest sum of squared slopes. What a
    chosen parent explains is subtracted before the next is chosen.

    Args:
        standard: draws with mean 0 and standard deviation 1.
        score: the score there.
    """
    size = standard.shape[1]
    if size > MAX_CANDIDATES:
        return np.zeros(0, np.int32)
    clipped = np.clip(standard, -4.0, 4.0)
    clipped = (clipped - clipped.mean(0)) / np.maximum(clipped.std(0), 1e-12)
    log_scales, locations = _log_scales(standard, score), clipped.copy()
    parents: list[int] = []
    for _ in range(min(MAX_PARENTS, size - 1)):
        slopes = _slopes(clipped, log_scales)
        squares = clipped**2 - 1.0
        curves = _slopes(squares, locations)
        found = np.stack([slopes.kept_or_many, curves.kept])
        found[:, :, parents] = 0.0  # a parent depends on nobody
        found[:, np.arange(size), np.arange(size)] = 0.0
        energy = np.sum(found[0] ** 2 + 2 * found[1] ** 2, 1)
        energy[parents] = 0.0
        best = int(np.argmax(energy))
        if energy[best] == 0.0:
            break
        parents.append(best)
        values = clipped[:, [best]]
        log_scales = log_scales - _explained(scale_features(values), log_scales)
        locations = locations - _explained(curve_features(values), locations)
    return np.array(sorted(parents), np.int32)


class _Slopes(NamedTuple):
    value: Float[np.ndarray, "p d"]
    error: Float[np.ndarray, "p d"]

    @property
    def kept(self) -> Float[np.ndarray, "p d"]:
        """The slopes that count, and zeros."""
        clear = np.abs(self.value) > np.maximum(SIGNIFICANT * self.error, SMALLEST_SLOPE)
        return np.where(clear, self.value, 0.0)

    @property
    def kept_or_many(self) -> Float[np.ndarray, "p d"]:
        """The slopes that count, and all those of a parent of many."""
        squares = self.value**2 - self.error**2
        np.fill_diagonal(squares, 0.0)
        has_many = np.sum(squares, 1, keepdims=True) > SMALLEST_SUM
        return np.where(has_many, self.value, self.kept)


def _slopes(inputs: Float[np.ndarray, "n p"], outputs: Float[np.ndarray, "n d"]) -> _Slopes:
    """Computes the slopes of each output on each input alone."""
    inputs, outputs = inputs - inputs.mean(0), outputs - outputs.mean(0)
    squares = np.sum(inputs**2, 0)
    value = (inputs.T @ outputs) / squares[:, None]
    # Draws of a chain are correlated: four count as one.
    error = 2.0 * outputs.std(0) / np.sqrt(squares)[:, None]
    return _Slopes(value, error)


def _log_scales(
    centred: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n d"]:
    """Estimates the log conditional scale of each coordinate in each draw."""
    tiny = 1e-30
    values = 0.5 * (np.log(np.abs(centred) + tiny) - np.log(np.abs(score) + tiny))
    middle = np.median(values, 0)
    # Without losing narrow places, where few draws are.
    spread = np.maximum(7.5 * np.median(np.abs(values - middle), 0), MIN_SPREAD)
    return np.clip(values, middle - spread, middle + spread)


def _with_parents(
    draws: Float[np.ndarray, "n d"],
    standard: Float[np.ndarray, "m d"],
    score: Float[np.ndarray, "m d"],
    parents: Int[np.ndarray, " p"],
    is_dense: bool,
) -> WhiteningNormal:
    """Fits the map in which all other coordinates depend on the parents.

    Args:
        draws: draws that show what the parents are.
        standard, score: draws and scores that show what the others are given the parents.
        parents: their indices.
        is_dense: whether correlations are learned.
    """
    size = standard.shape[1]
    children = np.setdiff1d(np.arange(size), parents)
    parent_loc = draws[:, parents].mean(0)
    parent_factor = _factor(draws[:, parents] - parent_loc, is_dense)
    values = WhiteningNormal(parent_loc, parent_factor).pull(standard[:, parents])
    # The hinges are flat on the left, which should be where the children are narrow.
    slopes = _slopes(values, _log_scales(standard, score)[:, children]).value
    signs = np.where(slopes.sum(1) < 0, -1.0, 1.0)
    parent_factor = parent_factor * signs
    fit = _fit_children(standard[:, children], score[:, children], values * signs, is_dense)

    loc = np.zeros(size)
    loc[parents], loc[children] = parent_loc, fit.loc
    if isinstance(fit.factor, LowRankFactor):
        factor = _beside_parents(parents, parent_factor, children, fit.factor)
    else:
        factor = np.zeros((size, size))
        factor[np.ix_(parents, parents)] = parent_factor
        factor[np.ix_(children, parents)] = fit.slopes
        factor[np.ix_(children, children)] = fit.factor
    dependence = Dependence.none(size)
    padded = dependence.parents.copy()
    padded[: len(parents)] = parents
    curve = WhiteningNormal(np.zeros(len(children)), fit.factor).pull(fit.curve.T).T
    log_scale, curve = (
        _padded(part, children, len(parents), dependence) for part in (fit.log_scale, curve)
    )
    return WhiteningNormal(loc, factor, Dependence(padded, log_scale, curve))


def _beside_parents(
    parents: Int[np.ndarray, " p"],
    scale: Float[np.ndarray, " p"],
    children: Int[np.ndarray, " c"],
    factor: LowRankFactor,
) -> LowRankFactor:
    """Returns the factor of all coordinates: parents are on no stretched axis."""
    size = len(parents) + len(children)
    scales, axes = np.zeros(size), np.zeros((size, factor.axes.shape[1]))
    scales[parents], scales[children] = scale, factor.scale
    axes[children] = factor.axes
    return LowRankFactor(scales, axes, factor.stretch)


def _padded(
    coefficients: Float[np.ndarray, "c f"],
    children: Int[np.ndarray, " c"],
    num_parents: int,
    like: Dependence,
) -> Float[np.ndarray, "d g"]:
    """Lays out coefficients of some children and parents among those of all."""
    all_of_them = np.zeros((like.curve.shape[0], 3, len(like.parents)))
    all_of_them[children, :, :num_parents] = coefficients.reshape(-1, 3, num_parents)
    return all_of_them.reshape(like.curve.shape)


class _Children(NamedTuple):
    """What the children are, given the parents' white values."""

    loc: Float[np.ndarray, " c"]
    slopes: Float[np.ndarray, "c p"]
    curve: Float[np.ndarray, "c h"]
    log_scale: Float[np.ndarray, "c f"]
    factor: Float[np.ndarray, "c c"] | LowRankFactor


def _fit_children(
    standard: Float[np.ndarray, "n c"],
    score: Float[np.ndarray, "n c"],
    values: Float[np.ndarray, "n p"],
    is_dense: bool,
) -> _Children:
    """Fits locations, scales and correlations in turn, each given the others."""
    log_scale = np.zeros((standard.shape[1], 3 * values.shape[1]))
    fit = _refit_children(standard, score, values, is_dense, log_scale)
    for _ in range(2):
        fit = _refit_children(standard, score, values, is_dense, fit.log_scale)
    return fit


def _refit_children(
    standard: Float[np.ndarray, "n c"],
    score: Float[np.ndarray, "n c"],
    values: Float[np.ndarray, "n p"],
    is_dense: bool,
    log_scale: Float[np.ndarray, "c f"],
) -> _Children:
    """Fits the children given how their scales depend on the parents.

    The regressions are weighted by the inverse of the average conditional variance: an error
    that is small where the children vary much may be large where they do not.
    """
    number = values.shape[1]
    linear = values if is_dense else values[:, :0]
    features, curves = scale_features(values), curve_features(values)
    weights = _precision_weights(features @ log_scale.T)
    hinges, squares = np.split(curves, [2 * number], 1)
    loc, coefficients = _weighted_regression(linear, [hinges, squares], standard, weights)
    narrowing = np.any(log_scale != 0, 1)
    if narrowing.any():
        # Where a scale goes to zero, the location has to go to a constant.
        loc[narrowing], bounded = _weighted_regression(
            linear[:, :0], [hinges], standard[:, narrowing], weights
        )
        coefficients[narrowing] = 0.0
        start = linear.shape[1]
        coefficients[narrowing, start : start + 2 * number] = bounded
    slopes, curve = np.split(coefficients, [linear.shape[1]], 1)
    residuals = standard - loc - linear @ slopes.T - curves @ curve.T
    root = np.sqrt(weights)[:, None]
    if is_dense:
        factor = _factor(residuals * root, is_dense)
    else:
        factor = low_rank_normal(residuals * root, score / root).factor
    children = WhiteningNormal(np.zeros(len(loc)), factor)
    straight = children.pull(residuals)
    estimates = _log_scales(straight, children.pulled_score(score))
    _, log_scale = _weighted_regression(
        values, [features[:, number:]], estimates, np.ones(len(values))
    )
    scales = np.std(straight * np.exp(-np.clip(features @ log_scale.T, -8.0, 8.0)), 0)
    factor = factor * scales if is_dense else rescaled(factor, scales)
    return _Children(loc, slopes, curve, log_scale, factor)


def _precision_weights(log_scales: Float[np.ndarray, "n c"]) -> Float[np.ndarray, " n"]:
    """Returns weights of mean 1, tempered so that enough draws count."""
    dependent = np.any(log_scales != 0, 0)
    if not dependent.any():
        return np.ones(len(log_scales))
    average = log_scales[:, dependent].mean(1)
    for power in (2.0, 1.5, 1.0, 0.75, 0.5, 0.25):
        weights = np.exp(-power * (average - average.min()))
        if np.sum(weights) ** 2 > (50 + 5 * log_scales.shape[1]) * np.sum(weights**2):
            break
    return weights / weights.mean()


def _weighted_regression(
    linear: Float[np.ndarray, "n k"],
    alternatives: list[Float[np.ndarray, "n _"]],
    outputs: Float[np.ndarray, "n c"],
    weights: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c f"]]:
    """Regresses each output on nothing, linear inputs, an alternative, or both.

    More inputs are used only if they explain clearly more.

    Returns:
        The constants, and the slopes on all inputs.
    """
    root = np.sqrt(weights)[:, None]
    inputs = np.concatenate([np.ones_like(root), linear, *alternatives], 1) * root
    outputs = outputs * root
    ends = np.cumsum([1, linear.shape[1], *(part.shape[1] for part in alternatives)])
    of_linear, *of_alternatives = map(np.arange, ends[:-1], ends[1:])
    choices = [[], of_linear, *of_alternatives]
    choices += [np.append(of_linear, one) for one in of_alternatives]
    best = np.full(outputs.shape[1], np.inf)
    found = np.zeros((ends[-1], outputs.shape[1]))
    for choice in choices:
        used = np.append(0, choice).astype(int)
        slopes = _solve(inputs[:, used], outputs)
        rest = np.mean((outputs - inputs[:, used] @ slopes) ** 2, 0)
        # Draws of a chain are correlated: four count as one.
        loss = 0.25 * len(outputs) * np.log(rest + 1e-300) + 4.0 * len(used)
        better = loss < best - (5.0 if len(choice) else 0.0)
        best = np.where(better, loss, best)
        found[:, better] = 0.0
        found[np.ix_(used, better)] = slopes[:, better]
    return found[0], found[1:].T


def _explained(
    inputs: Float[np.ndarray, "n k"], outputs: Float[np.ndarray, "n c"]
) -> Float[np.ndarray, "n c"]:
    """Returns what a linear regression explains of the outputs."""
    inputs = np.concatenate([np.ones((len(inputs), 1)), inputs], 1)
    return inputs @ _solve(inputs, outputs)


def _solve(
    inputs: Float[np.ndarray, "n k"], outputs: Float[np.ndarray, "n c"]
) -> Float[np.ndarray, "k c"]:
    """Solves a least-squares problem by its normal equations, with a tiny ridge."""
    gram = inputs.T @ inputs
    ridge = 1e-10 * np.diag(np.diagonal(gram) + 1e-300)
    return np.linalg.solve(gram + ridge, inputs.T @ outputs)


def _factor(draws: Float[np.ndarray, "n k"], is_dense: bool) -> np.ndarray:
    """Returns a factor of the covariance of centred draws, shrunk to a diagonal one."""
    number, size = draws.shape
    variances = np.mean(draws**2, 0) + 1e-12
    if not is_dense:
        return np.sqrt(variances)
    prior = 5.0 + 0.1 * size
    covariance = draws.T @ draws + prior * np.diag(variances)
    return np.linalg.cholesky(covariance / (number + prior))
