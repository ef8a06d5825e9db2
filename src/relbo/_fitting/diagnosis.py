"""Why a run failed, as far as one can tell from its last good state."""

from typing import Any

import jax
import numpy as np

_HUGE, _TINY, _AT_CAP = 1e6, 1e-8, 0.98


def likely_cause(
    guide: Any, params: dict[str, Any], bad_arguments: list[str], failed_at: int, rate: str
) -> str:
    """A sentence on what probably went wrong, and what to try.

    Args:
        guide: the guide that was trained.
        params: its last good parameters, constrained.
        bad_arguments: where the model's arguments hold NaN or infinities.
        failed_at: the iteration that failed.
        rate: what is known of the learning rate.
    """
    if bad_arguments:
        return f"{', '.join(bad_arguments)} of the model's arguments holds NaN or infinity"
    if failed_at == 0:
        return (
            "the first loss already is not finite: the guide begins off the model's support or "
            "where its density overflows (try init_loc_fn, or look at the model)"
        )
    capped = _at_cap(guide, params)
    if capped:
        return (
            f"the step size {capped} is at its cap, so the steps inside the guide may have "
            "become unstable (try a smaller max_step_size)"
        )
    extreme = _extreme(params)
    if extreme:
        return f"the parameter {extreme}; {rate} may be too high (try on_failure='back off')"
    return f"{rate} is too high for this model (try a lower one, or on_failure='back off')"


def _at_cap(guide: Any, params: dict[str, Any]) -> str | None:
    step_size = getattr(
        getattr(getattr(guide, "refinement", None), "kernel", None), "step_size", None
    )
    upper = getattr(step_size, "upper", None)
    if upper is None:
        return None
    start = f"{guide.prefix}_step_size"
    for name, value in params.items():
        if name.startswith(start) and np.max(np.asarray(value)) > _AT_CAP * upper:
            return name
    return None


def _extreme(params: dict[str, Any]) -> str | None:
    """The parameter that is furthest from ordinary numbers."""
    worst, found = 1.0, None
    for name, value in params.items():
        for leaf in jax.tree.leaves(value):
            sizes = np.abs(np.asarray(leaf, float)).ravel()
            if sizes.size == 0:
                continue
            large = sizes.max()
            if large / _HUGE > worst:
                worst, found = large / _HUGE, f"{name} has grown to {large:.1e}"
            is_scale = name.endswith("scale")
            if is_scale and 0 < sizes.min() < _TINY and _TINY / sizes.min() > worst:
                worst, found = _TINY / sizes.min(), f"{name} has shrunk to {sizes.min():.1e}"
    return found
