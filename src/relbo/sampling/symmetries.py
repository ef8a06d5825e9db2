"""Modes that are images of each other: by changed signs, or by elements in another order."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int

from relbo.problem.problem import Site, coordinate_names
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.findings import Finding

Points = Float[np.ndarray, "n d"]
LogDensity = Callable[[Points], Float[np.ndarray, " n"]]


def findings_of_symmetry(
    modes: list[ChainDraws], sites: tuple[Site, ...], logdensity: LogDensity
) -> list[Finding]:
    """Says so if all modes are images of the first one.

    Args:
        modes: the draws of each mode.
        sites: the latent sites.
        logdensity: the log density at one point for each chain.
    """
    first = modes[0]
    last, heights = first.draws[-1], first.logdensity[-1]
    moments = [(part.draws.mean((0, 1)), part.draws.std((0, 1))) for part in modes]

    def is_symmetry(image: Points) -> bool:
        return bool(np.allclose(logdensity(image), heights, rtol=1e-4, atol=1e-2))

    found: list[str] = []
    for mean, _ in moments[1:]:
        flips = _flips(moments[0], mean, sites)
        orders = _orders(moments[0], mean, sites)
        by_sign = next((s for s in flips if is_symmetry(np.where(s, -last, last))), None)
        order = next((o for o in orders if is_symmetry(last[:, o])), None)
        if by_sign is not None:
            found.append(f"the signs of {_named(by_sign, sites)}")
        elif order is not None:
            found.append(f"the order of {_named(order != np.arange(len(order)), sites)}")
        else:
            return []
    what = " and ".join(sorted(set(found)))
    return [
        Finding(
            f"The modes are images of each other: changing {what} changes nothing. Fix a sign "
            "or an order in the model, and one mode is left.",
            is_fatal=False,
        )
    ]


def _flips(
    one: tuple[np.ndarray, np.ndarray], other: np.ndarray, sites: tuple[Site, ...]
) -> Iterator[np.ndarray]:
    """Proposes coordinates whose signs differ."""
    mean, sd = one
    is_clear = np.abs(mean) > sd
    changed = is_clear & (np.abs(mean + other) < np.abs(mean - other))
    if not changed.any():
        return
    same = is_clear & ~changed
    yield changed
    # Those close to zero change as the others of their sites do, or with all of the others.
    of_site = np.repeat(np.arange(len(sites)), [site.size for site in sites])
    yield np.isin(of_site, of_site[changed]) & ~same
    yield ~same


def _orders(
    one: tuple[np.ndarray, np.ndarray], other: np.ndarray, sites: tuple[Site, ...]
) -> Iterator[Int[np.ndarray, " d"]]:
    """Proposes orders of the elements of sites that have the same number of them."""
    mean, _ = one
    starts = np.cumsum([0, *(site.size for site in sites)])
    for site, start in zip(sites, starts, strict=False):
        if not site.shape or site.shape[0] < 2:
            continue
        block = slice(start, start + site.size)
        first, second = (values[block].reshape(site.shape[0], -1) for values in (mean, other))
        # The element of the first mode that takes the place of each in the second.
        distances = np.sum((first[:, None] - second[None]) ** 2, 2)
        order = np.argmin(distances, 0)
        if len(set(order)) < len(order) or np.all(order == np.arange(len(order))):
            continue
        alone = _reordered(sites, starts, order, [site])
        yield alone
        yield _reordered(sites, starts, order, sites)


def _reordered(
    sites: tuple[Site, ...],
    starts: np.ndarray,
    order: Int[np.ndarray, " k"],
    chosen: "tuple[Site, ...] | list[Site]",
) -> Int[np.ndarray, " d"]:
    """Returns the positions of all coordinates with elements of some sites reordered."""
    positions = np.arange(starts[-1])
    for site, start in zip(sites, starts, strict=False):
        if site in chosen and site.shape and site.shape[0] == len(order):
            block = positions[start : start + site.size].reshape(site.shape[0], -1)
            positions[start : start + site.size] = block[order].ravel()
    return positions


def _named(chosen: np.ndarray, sites: tuple[Site, ...]) -> str:
    """Names sites, or some of their coordinates."""
    names, start = [], 0
    for site in sites:
        part = chosen[start : start + site.size]
        start += site.size
        if np.all(part):
            names.append(site.name)
        elif np.any(part):
            every = np.array(coordinate_names(*site))
            names += [*every[part][:5], *(["..."] if np.sum(part) > 5 else [])]
    return ", ".join(names)
