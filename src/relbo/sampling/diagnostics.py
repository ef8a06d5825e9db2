"""Diagnostics of many short chains: convergence, effective sample size, stuck chains."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtr

TAIL = 0.03
"""The share of draws that counts as a tail."""
MAX_RANKED = 1000
"""The largest number of coordinates whose ranks are compared."""


def nested_rhat(
    draws: Float[np.ndarray, "chains draws ..."], num_superchains: int
) -> Float[np.ndarray, "..."]:
    r"""Computes the nested R-hat of many short chains.

    Chains that started in the same point form a superchain. If the means of the superchains
    differ by more than the scatter of their chains explains, the chains have not converged:

    $$\sqrt{1 + B / W}$$

    with B the variance of the superchains' means and W the mean, over superchains, of the
    variance between and within their chains. It is close to 1 for converged chains of a few
    draws, for which the ordinary R-hat is mostly noise.

    Args:
        draws: the draws; chains that started in the same point are next to each other.
        num_superchains: a divisor of the number of chains.

    References:
        Margossian et al., Nested R-hat: assessing the convergence of Markov chain Monte Carlo
        when running many short chains, 2024.
    """
    num_chains, num_draws = draws.shape[:2]
    if num_chains % num_superchains:
        raise ValueError(
            f"num_superchains: expected a divisor of {num_chains} chains, got {num_superchains}"
        )
    groups = draws.reshape(num_superchains, -1, *draws.shape[1:])
    chain_means = groups.mean(2)
    between_superchains = chain_means.mean(1).var(0, ddof=1)
    scatter = np.zeros(draws.shape[2:])
    if groups.shape[1] > 1:
        scatter = scatter + chain_means.var(1, ddof=1).mean(0)
    if num_draws > 1:
        scatter = scatter + groups.var(2, ddof=1).mean((0, 1))
    # A constant has converged.
    still = (scatter == 0) & (between_superchains == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(still, 0.0, between_superchains / scatter)
    return np.asarray(np.sqrt(1.0 + ratio))


def effective_sample_size(
    draws: Float[np.ndarray, "chains draws ..."],
) -> Float[np.ndarray, "..."]:
    """Computes the effective number of draws, for means, variances and tails.

    It is the smallest of the effective sample sizes of the values, of their squared distances
    from the mean, and of the events that a value is below the 5 % or above the 95 % quantile.
    """
    from numpyro.diagnostics import effective_sample_size as of_means

    if draws.shape[1] < 4:
        return np.full(draws.shape[2:], np.nan)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    tails = [(draws <= low).astype(float), (draws >= high).astype(float)]
    squares = (draws - draws.mean((0, 1))) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = [np.asarray(of_means(values)) for values in (draws, squares, *tails)]
    # The estimate is unbounded or even negative for antithetic draws: capped as Stan does.
    number = draws.shape[0] * draws.shape[1]
    most = number * np.log10(number)
    capped = [np.where(size <= 0, most, np.minimum(size, most)) for size in sizes]
    return np.asarray(np.min(capped, 0))


def stuck_chains(
    acceptance: Float[np.ndarray, "chains draws"],
    logdensity: Float[np.ndarray, "chains draws"],
) -> np.ndarray:
    """Marks chains that hardly move, or that are far from all others.

    A chain is far from the others if its highest log density is below the 10 % quantile of a
    typical chain by more than twice the distance between its 10 % and 90 % quantiles.
    """
    hardly_moves = acceptance.mean(1) < 0.05
    low, high = np.median(np.quantile(logdensity, [0.1, 0.9], axis=1), axis=1)
    best = logdensity.max(1)
    return hardly_moves | ~np.isfinite(best) | (best < low - 2 * (high - low))


def convergence(
    draws: Float[np.ndarray, "chains draws ..."], num_superchains: int
) -> Float[np.ndarray, "..."]:
    """Computes the largest nested R-hat of the draws, of their ranks and of folded ranks.

    Ranks compare heavy tails, and folded ranks compare scales. With very many coordinates the
    ranks are left out, since sorting takes longer than sampling.
    """
    flat = draws.reshape(*draws.shape[:2], -1)
    found = nested_rhat(flat, num_superchains)
    if flat.shape[2] <= MAX_RANKED:
        folded = np.abs(flat - np.median(flat, (0, 1)))
        for value in (flat, folded):
            found = np.maximum(found, nested_rhat(normal_scores(value), num_superchains))
    return found.reshape(draws.shape[2:])


def normal_scores(values: Float[np.ndarray, "chains draws n"]) -> np.ndarray:
    """Replaces values by the normal quantiles of their ranks over all chains."""
    flat = values.reshape(-1, values.shape[2])
    number = len(flat)
    order = np.argsort(flat, 0)
    quantiles = ndtri((np.arange(1.0, number + 1) - 0.375) / (number + 0.25))
    scores = np.empty(flat.shape)
    np.put_along_axis(scores, order, quantiles[:, None], 0)
    # Rejected proposals repeat a value, which does no harm; a discrete site has few values.
    ordered = np.take_along_axis(flat, order, 0)
    repeated = np.mean(ordered[1:] == ordered[:-1], 0)
    scores[:, repeated > 0.9] = flat[:, repeated > 0.9]
    return scores.reshape(values.shape)


def chain_spread(draws: Float[np.ndarray, "chains draws n"]) -> Float[np.ndarray, " n"]:
    """Computes the variance of the chains' means over the variance within chains.

    For stationary chains it is the autocorrelation time over the length of a chain.
    """
    within = draws.var(1, ddof=1).mean(0)
    between = draws.mean(1).var(0, ddof=1)
    return between / np.where(within > 0, within, np.inf)


def largest_autocorrelation(draws: Float[np.ndarray, "draws chains n"]) -> float:
    """Computes the largest autocorrelation of a coordinate from one draw to the next."""
    centred = draws - draws.mean((0, 1))
    products = np.mean(centred[1:] * centred[:-1], (0, 1))
    variances = np.mean(centred**2, (0, 1))
    return float(np.max(products / np.maximum(variances, 1e-300)))


def independence(correlation: float) -> float:
    """Returns how many independent draws one draw of an autoregression is worth."""
    return (1 - correlation) / (1 + correlation)


def drift(
    draws: Float[np.ndarray, "chains draws n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Compares the second half of all chains with the first.

    Returns:
        The change of the mean in standard deviations, and in standard errors.
    """
    half = draws.shape[1] // 2
    change = draws[:, -half:].mean(1) - draws[:, :half].mean(1)
    return _effect_and_errors(change, draws.std((0, 1)))


def rejected_in_tails(
    draws: Float[np.ndarray, "chains draws n"], acceptance: Float[np.ndarray, "chains draws"]
) -> Float[np.ndarray, " n"]:
    """Computes the share of rejected steps among those that start in a tail of a coordinate.

    Where steps are too long for a narrow place, hardly any is accepted from there or into it.

    Args:
        draws: the draws of each chain, one after another.
        acceptance: the probability with which the step to each draw was accepted.

    Returns:
        The larger share of the two tails, less two standard errors.
    """
    low, high = np.quantile(draws, [TAIL, 1 - TAIL], axis=(0, 1))
    rejected = (acceptance[:, 1:] < 0.1)[..., None]
    found = np.zeros(draws.shape[2])
    for is_start in (draws[:, :-1] <= low, draws[:, :-1] >= high):
        number = np.maximum(np.sum(is_start, (0, 1)), 1)
        share = np.sum(rejected & is_start, (0, 1)) / number
        found = np.maximum(found, share - 2 * np.sqrt(share * (1 - share) / number))
    return found


def tail_index(draws: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """Estimates how heavy the tails are, by Hill's estimator on distances from the median.

    A distribution with index k has moments below order 1 / k: above 0.5 there is no variance,
    and above 1 no mean.
    """
    distances = np.sort(np.abs(draws - np.median(draws, 0)), 0)
    number = int(min(0.05 * len(draws), 3 * len(draws) ** 0.5))
    top = np.maximum(distances[-number - 1 :], np.finfo(float).tiny)
    return np.mean(np.log(top[1:]) - np.log(top[0]), 0)


class SteinErrors(NamedTuple):
    """How far averages of a score are from what they are under its density."""

    slope: tuple[np.ndarray, np.ndarray]
    """E[g] = 0: the violation in units of 1 / sd, and in standard errors."""
    scale: tuple[np.ndarray, np.ndarray]
    """E[(z - m) g] = -1: the violation, and in standard errors."""


def stein_errors(
    draws: Float[np.ndarray, "draws chains d"], score: Float[np.ndarray, "draws chains d"]
) -> SteinErrors:
    """Computes by how much Stein's identities are violated, coordinate by coordinate."""
    scale = draws.std((0, 1))
    centred = draws - draws.mean((0, 1))
    ones = np.ones_like(scale)
    return SteinErrors(
        _effect_and_errors((score * scale).mean(0), ones),
        _effect_and_errors(1.0 + (centred * score).mean(0), ones),
    )


def _effect_and_errors(
    by_chain: Float[np.ndarray, "chains n"], unit: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Returns the mean over chains in a unit, and in its standard errors over chains.

    The errors are normal ones: with few chains the ratio has a Student distribution.
    """
    mean = by_chain.mean(0)
    error = by_chain.std(0, ddof=1) / len(by_chain) ** 0.5
    tiny = np.finfo(float).tiny
    ratio = mean / np.maximum(error, tiny)
    normal = -ndtri(stdtr(len(by_chain) - 1, -np.abs(ratio)))
    return mean / np.maximum(unit, tiny), np.sign(ratio) * normal
