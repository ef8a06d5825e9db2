"""Where a refined guide's steps begin: what its base proposes in one run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo._guide_bases import base_of
from relbo._program import Sites
from relbo.bases import AbstractBase


class Start(NamedTuple):
    """What the base guide proposes in one run."""

    base: AbstractBase
    """Over the latent values that the kernel moves."""
    fixed: dict[str, Array]
    """Unconstrained values of the other latent sites."""
    fixed_log_q: Scalar
    scale: float
    """How many data points each local latent value stands for."""
    plates: dict[str, Array]
    """The indices of the plates that the base opened."""


def start_of(
    trace: dict[str, Sites],
    distributions: dict[str, Any],
    unpack: Callable[[PyTree], dict[str, Array]],
    key: PRNGKeyArray,
) -> Start:
    """Parts what the kernel moves from what stays where the base drew it.

    Args:
        trace: of the base's run.
        distributions: over unconstrained values, by site.
        unpack: values by site, from a position.
        key: for the draws that stay.
    """
    scales = {name: _subsampling_scale(trace, name) for name in distributions}
    local = {name for name, scale in scales.items() if scale != 1.0}
    moved = local or set(distributions)
    if len({scales[name] for name in moved}) > 1:
        raise ValueError(
            f"local latent sites {sorted(moved)} are in plates that subsample at different "
            "rates: give them one rate, or refine one of the plates only"
        )
    fixed_base = {n: fn for n, fn in distributions.items() if n not in moved}
    fixed, fixed_log_q = {}, jnp.zeros(())
    if fixed_base:
        # Globals beside subsampled locals stay where the base drew them: moving both with
        # one minibatch would spoil the bound.
        position, fixed_log_q = base_of(fixed_base).sample(key)
        fixed = unpack(position)
    return Start(
        base_of({n: fn for n, fn in distributions.items() if n in moved}),
        fixed,
        fixed_log_q,
        next(iter(scales[name] for name in moved)),
        {n: site["value"] for n, site in trace.items() if site["type"] == "plate"},
    )


def _subsampling_scale(trace: dict[str, Sites], name: str) -> float:
    """How many data points one entry of a site stands for: the product over its plates."""
    scale = 1.0
    if name not in trace:  # the vector of a guide that packs all sites, which is never local
        return scale
    for frame in trace[name]["cond_indep_stack"]:
        full = trace[frame.name]["args"][0] if frame.name in trace else frame.size
        scale *= full / frame.size
    return scale
