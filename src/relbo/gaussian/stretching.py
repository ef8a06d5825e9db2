"""Correlations in many dimensions: a diagonal normal gets stretched axes."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from relbo.gaussian.evaluation import Evaluate
from relbo.gaussian.factors import LowRankFactor
from relbo.gaussian.fitting import CONVERGED, FitState, fit_step
from relbo.gaussian.whitening import WhiteningNormal

MAX_ENTRIES = 4_000_000
"""The largest number of entries of all axes: 2,000 dimensions may have them all."""
POINTS_PER_AXIS = 4
"""Evaluations per axis and step; with 2.5 the noise cost three nats in 1,600 dimensions."""
MAX_STEPS = 8
LAST_RATES = (0.5, 0.25, 0.15)
"""Rates of the last steps, which average the noise of those before."""
KRYLOV = 4
"""Dimensions of the space in which an axis is sought, by the number of axes."""
MIN_PRECISION = 1e-6
"""The smallest precision along an axis, in units of the diagonal normal's."""


def num_axes(size: int) -> int:
    """Returns the number of axes that is affordable in a number of dimensions."""
    return min(size, MAX_ENTRIES // size)


def stretched_normal(
    rng: np.random.Generator,
    evaluate: Evaluate,
    batch_size: int,
    normal: WhiteningNormal,
    *,
    is_late: Callable[[], bool] = lambda: False,
) -> WhiteningNormal:
    """Adds stretched axes to a normal that was fitted to a density.

    Up to 2,000 dimensions all axes are learned, by natural gradients. Beyond, as many as
    are affordable are found by how the score changes along them.

    Args:
        rng: the source of all noise.
        evaluate: the model.
        batch_size: the number of points that `evaluate` takes at once.
        normal: a normal with a diagonal factor, or with a dense one, whose axes are known.
        is_late: whether the time is up.

    Returns:
        A normal with a `LowRankFactor`.
    """
    if normal.is_dense:
        return _with_all_axes(normal)
    size = len(normal.loc)
    number = num_axes(size)
    if number < size:
        return _with_some_axes(rng, evaluate, batch_size, normal, number, is_late)
    num_points = batch_size * -(-POINTS_PER_AXIS * number // batch_size)
    dense = WhiteningNormal(normal.loc, np.diag(np.asarray(normal.factor)))
    fit = FitState(dense, dense)
    step = lambda fit, rate: fit_step(rng, evaluate, num_points, fit, rate)
    for _ in range(MAX_STEPS):
        fit = step(fit, 1.0)
        if fit.shift < CONVERGED or is_late():
            break
    for rate in LAST_RATES:
        fit = fit if is_late() else step(fit, rate)
    return _with_all_axes(fit.before)


def _with_all_axes(normal: WhiteningNormal) -> WhiteningNormal:
    """Writes a dense factor as a diagonal with stretched axes."""
    rows = np.asarray(normal.factor)
    scale = np.linalg.norm(rows, axis=1)
    axes, stretch, _ = np.linalg.svd(rows / scale[:, None])
    return WhiteningNormal(normal.loc, LowRankFactor(scale, axes, stretch))


def _with_some_axes(
    rng: np.random.Generator,
    evaluate: Evaluate,
    batch_size: int,
    normal: WhiteningNormal,
    number: int,
    is_late: Callable[[], bool],
) -> WhiteningNormal:
    """Stretches the axes that lower the Kullback-Leibler divergence most.

    A score that changes linearly shows the product of the precision and a vector in two
    evaluations. The axes are sought in the Krylov space of such products, which contains the
    widest and the narrowest directions first.
    """
    dimension = min(KRYLOV * number, len(normal.loc))
    basis, products = _krylov_space(rng, evaluate, batch_size, normal, dimension, is_late)
    inside = basis.T @ products
    precisions, rotation = np.linalg.eigh(0.5 * (inside + inside.T))
    precisions = np.clip(precisions, MIN_PRECISION, 1.0 / MIN_PRECISION)
    gains = precisions - 1.0 - np.log(precisions)
    best = np.argsort(-gains)[:number]
    unused = number - len(best)
    stretch = np.pad(precisions[best] ** -0.5, (0, unused), constant_values=1.0)
    axes = np.pad(basis @ rotation[:, best], ((0, 0), (0, unused)))
    factor = LowRankFactor(np.asarray(normal.factor), axes, stretch)
    return WhiteningNormal(normal.loc, factor)


def _krylov_space(
    rng: np.random.Generator,
    evaluate: Evaluate,
    batch_size: int,
    normal: WhiteningNormal,
    dimension: int,
    is_late: Callable[[], bool],
) -> tuple[Float[np.ndarray, "d m"], Float[np.ndarray, "d m"]]:
    """Returns an orthonormal basis, and the precision in white coordinates times it."""
    size = len(normal.loc)
    basis, products = np.zeros((size, 0)), np.zeros((size, 0))
    block = rng.standard_normal((size, min(batch_size // 2, dimension)))
    while basis.shape[1] + block.shape[1] <= dimension and not is_late():
        for _ in range(2):  # once leaves rounding errors
            block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
        product = _precision_times(rng, evaluate, normal, block)
        basis = np.concatenate([basis, block], 1)
        products = np.concatenate([products, product], 1)
        block = product
    return basis, products


def _precision_times(
    rng: np.random.Generator,
    evaluate: Evaluate,
    normal: WhiteningNormal,
    vectors: Float[np.ndarray, "d b"],
) -> Float[np.ndarray, "d b"]:
    """Multiplies unit vectors by the average precision, from scores on both sides of draws."""
    draws = rng.standard_normal(vectors.T.shape)
    here = evaluate(normal, np.concatenate([draws + vectors.T, draws - vectors.T]))
    ahead, behind = np.split(here.score, 2)
    product = 0.5 * (behind - ahead)
    # A draw without a score leaves its direction as it is.
    is_fine = np.all(np.isfinite(product), 1, keepdims=True)
    return np.where(is_fine, product, vectors.T).T
