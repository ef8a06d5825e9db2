"""Draws for other libraries and for notebooks: ArviZ and its plots, HTML."""

import warnings
from collections.abc import Mapping
from html import escape
from typing import Any

import jax.random as jr
import numpy as np

import relbo
from relbo.problem import Problem
from relbo.sampling.tuning import ChainTuning
from relbo.sampling.verdict import Summary


def given_groups(problem: Problem) -> dict[str, dict[str, np.ndarray]]:
    """Returns the groups of an ArviZ object with what the model was given."""
    groups = {
        "observed_data": problem.observed(),
        "constant_data": problem.program.constants(problem.data),
    }
    return {
        group: {name: np.asarray(value) for name, value in values.items()}
        for group, values in groups.items()
        if values
    }


def prior_groups(problem: Problem, seed: int, number: int) -> dict[str, dict[str, np.ndarray]]:
    """Returns the groups with draws from the prior, as one chain."""
    drawn = problem.program.draw_prior(jr.key(seed), number, problem.data)
    observed = problem.observed()
    groups: dict[str, dict[str, np.ndarray]] = {"prior": {}, "prior_predictive": {}}
    for name, values in drawn.items():
        group = "prior_predictive" if name in observed else "prior"
        groups[group][name] = np.asarray(values)[None]
    return {group: values for group, values in groups.items() if values}


def arviz_data(
    groups: dict[str, Any],
    coords: Mapping[str, Any] | None,
    dims: Mapping[str, list[str]] | None,
    seconds: Mapping[str, float],
    tuning: ChainTuning | None = None,
) -> Any:
    """Returns the data of ArviZ's installed version.

    Args:
        groups: arrays by group and name.
        coords: labels along axes.
        dims: names of axes.
        seconds: seconds of each phase.
        tuning: what the warm-up of the chains adapted.
    """
    arviz = _arviz()
    names = {name for values in groups.values() for name in values}
    options = {
        "coords": dict(coords or {}),
        "dims": {name: axes for name, axes in (dims or {}).items() if name in names},
    }
    with warnings.catch_warnings():
        # ArviZ 0.23 warns of many short chains.
        warnings.simplefilter("ignore")
        # From 1.0 on, ArviZ takes one dictionary and returns a DataTree.
        is_new = int(arviz.__version__.partition(".")[0]) >= 1
        data = (
            arviz.from_dict(groups, **options)
            if is_new
            else arviz.from_dict(**groups, **options)
        )
    attributes = {
        "inference_library": "relbo",
        "inference_library_version": relbo.__version__,
        "sampling_time": float(sum(seconds.values())),
        **{f"seconds_{phase.replace(' ', '_')}": float(s) for phase, s in seconds.items()},
    }
    if tuning is not None:
        attributes |= {
            "step_size": float(np.exp(tuning.log_step)),
            "trajectory_length": float(tuning.length),
            "target_acceptance": float(tuning.method.target_acceptance),
            "iterations_per_draw": float(tuning.spacing),
        }
    data["posterior"].attrs.update(attributes)
    return data


def plot_traces(chains: dict[str, np.ndarray], shown: np.ndarray, total: int) -> Any:
    """Plots densities and traces of some of many chains, labelled by their numbers."""
    arviz = _arviz()
    data = arviz_data({"posterior": chains}, {"chain": shown}, None, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plot = getattr(arviz, "plot_trace_dist", None) or arviz.plot_trace
        axes = plot(data)
    import matplotlib.pyplot as plt

    label = ", ".join(str(number) for number in shown)
    plt.gcf().suptitle(f"Chains {label} of {total}", fontsize="medium")
    return axes


def html_of(title: str, summary: Summary, verdict: str) -> str:
    """Returns what a notebook shows of a posterior."""
    first, *rest = verdict.splitlines()
    more = "".join(f"<li>{escape(line)}</li>" for line in rest)
    return (
        f"<p><code>{escape(title)}</code></p>{summary._repr_html_()}"
        f"<p><strong>{escape(first)}</strong></p><ul>{more}</ul>"
    )


def _arviz() -> Any:
    with warnings.catch_warnings():
        # ArviZ 0.23 announces its successor.
        warnings.simplefilter("ignore")
        # Imported here, since it takes seconds.
        import arviz
    return arviz
