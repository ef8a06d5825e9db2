"""Figures of a posterior, drawn by ArviZ."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from relbo.sampling import Posterior

_MOST_PARAMETERS = 6
_MOST_PAIRED = 4
_MOST_POINTS = 500
_MOST_CHAINS = 4

# Fixed identifiers: the same draws give the same file.
_STYLE: Any = {"svg.hashsalt": "relbo", "figure.constrained_layout.use": True}


def draw_figures(posterior: Posterior, directory: Path) -> list[Path]:
    """Writes the figures `trace`, `rank` and `pair` as PNG and SVG.

    Each shows a few parameters, and at most four chains or groups of chains: with 80 chains,
    ArviZ takes 17 s for the traces alone.

    Returns:
        The paths of the PNG files; empty if no parameter has finite draws that differ.
    """
    chosen = choose_parameters(posterior, _MOST_PARAMETERS)
    if not chosen:
        return []
    # ArviZ takes seconds to import.
    import arviz
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("agg")
    # ArviZ 1.0 renamed the plot and the argument for the size.
    is_new = hasattr(arviz, "plot_trace_dist")
    plot_trace = getattr(arviz, "plot_trace_dist" if is_new else "plot_trace")
    groups = min(_MOST_CHAINS, posterior.num_superchains)
    some = {name: draws[:_MOST_CHAINS] for name, draws in chosen.items()}
    joined = {name: _join_chains(draws, groups) for name, draws in chosen.items()}
    plots = {
        "trace": (plot_trace, some, (10, 1 + 1.4 * len(chosen))),
        "rank": (arviz.plot_rank, joined, (10, 0.5 + 2.5 * -(-len(chosen) // 3))),
    }
    if len(chosen) > 1:
        paired = choose_parameters(posterior, _MOST_PAIRED)
        thinned = {name: _thin(draws) for name, draws in paired.items()}
        plots["pair"] = (arviz.plot_pair, thinned, (8, 8))
    for name, (plot, draws, size) in plots.items():
        data = Posterior(draws, num_draws=1, sample_stats={}, num_superchains=1, step_size=None)
        with warnings.catch_warnings(), plt.rc_context(_STYLE):
            warnings.simplefilter("ignore")
            sized = {"figure_kwargs": {"figsize": size}} if is_new else {"figsize": size}
            plot(data.to_arviz(), **sized)
            plt.savefig(directory / f"{name}.svg", metadata={"Date": None})
            plt.savefig(directory / f"{name}.png", dpi=100)
            plt.close()
    return [directory / f"{name}.png" for name in plots]


def choose_parameters(posterior: Posterior, number: int) -> dict[str, np.ndarray]:
    """Chooses scalars to show: `[chains, draws]` by name, in the order of the sites.

    Scalar sites come first, then the first coordinate of every other site, then the second;
    the coordinate with the largest R-hat is always among them.
    """
    summary = posterior.summary()
    rhat = dict(zip(summary.names, summary.columns["rhat"], strict=True))
    flat = [draws.reshape(*draws.shape[:2], -1) for draws in posterior.chains.values()]
    columns = [site[..., k].astype(float) for site in flat for k in range(site.shape[2])]
    draws = dict(zip(summary.names, columns, strict=True))
    depth = [(site.shape[2] > 1, k) for site in flat for k in range(site.shape[2])]
    ranked = [
        name
        for _, name in sorted(zip(depth, draws, strict=True), key=lambda pair: pair[0])
        if np.all(np.isfinite(draws[name])) and np.ptp(draws[name]) > 0
    ]
    chosen = ranked[:number]
    worst = max(ranked, key=lambda name: rhat[name], default=None)
    if worst is not None and worst not in chosen:
        chosen[-1] = worst
    return {name: draws[name] for name in draws if name in chosen}


def _join_chains(draws: np.ndarray, groups: int) -> np.ndarray:
    """Joins neighbouring chains into groups, since ranks need many draws per chain.

    Chains that started from the same point are neighbours.
    """
    return draws[: len(draws) // groups * groups].reshape(groups, -1)


def _thin(draws: np.ndarray) -> np.ndarray:
    """Returns evenly spaced draws as one chain; more points would hide one another."""
    kept = np.linspace(0, draws.size - 1, min(draws.size, _MOST_POINTS)).astype(int)
    return draws.reshape(1, -1)[:, kept]
