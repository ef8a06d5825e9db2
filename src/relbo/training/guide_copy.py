"""Copies of a guide without what it remembers of its first call."""

import copy
from typing import Any

from numpyro.infer.autoguide import AutoDAIS, AutoGuide, AutoGuideList, AutoSemiDAIS

from relbo.guides.refined_guide import AbstractRefinedGuide

_MEMORY = ("prototype_trace", "_potential_fn", "_potential_fn_gen", "_postprocess_fn")
"""Attributes in which NumPyro's guides keep their first call."""


def as_new(guide: Any) -> Any:
    """Returns a copy of a guide as before its first call: it draws new initial values."""
    if isinstance(guide, AbstractRefinedGuide):
        fresh = copy.copy(guide)
        for name in ("base", "guide"):
            if isinstance(inner := getattr(guide, name, None), AutoGuide):
                setattr(fresh, name, as_new(inner))
        return fresh
    if not isinstance(guide, AutoGuide):
        return guide
    memo: dict[int, Any] = {}
    for part in _parts(guide):
        # The copy shares the model; what a part remembers of its data becomes None.
        memo[id(part.model)] = part.model
        memo |= {id(vars(part).get(name)): None for name in _MEMORY}
    return copy.deepcopy(guide, memo)


def forget(guide: Any) -> None:
    """Makes a guide set itself up again at its next call."""
    inner = [getattr(guide, name, None) for name in ("base", "guide")]
    for one in (guide, *inner):
        if isinstance(one, AutoGuide):
            for part in _parts(one):
                part.prototype_trace = None


def freezes_data(guide: Any) -> bool:
    """Returns whether a guide keeps the data of its first call for good."""
    return isinstance(guide, AutoDAIS | AutoSemiDAIS)


def _parts(guide: AutoGuide) -> list[AutoGuide]:
    inner = list(guide) if isinstance(guide, AutoGuideList) else []
    return [guide, *(p for one in inner if isinstance(one, AutoGuide) for p in _parts(one))]
