"""What a guide remembers of the first call that it has seen."""

import copy
from typing import Any

from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoGuide,
    AutoGuideList,
    AutoSemiDAIS,
    AutoSurrogateLikelihoodDAIS,
)

from relbo._refined_guide import AbstractRefinedGuide

_MEMORY = ("prototype_trace", "_potential_fn", "_potential_fn_gen", "_postprocess_fn")
"""Attributes of NumPyro's guides in which they keep their first call."""


def as_new(guide: Any) -> Any:
    """A copy of a guide that has not seen its model, so that it draws new initial values."""
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
        # The model is shared, and what a part remembers of its data becomes None.
        memo[id(part.model)] = part.model
        memo |= {id(vars(part).get(name)): None for name in _MEMORY}
    return copy.deepcopy(guide, memo)


def _parts(guide: Any) -> list[AutoGuide]:
    inner = list(guide) if isinstance(guide, AutoGuideList) else []
    return [
        guide,
        *(part for one in inner if isinstance(one, AutoGuide) for part in _parts(one)),
    ]


def forget(guide: Any) -> None:
    """Makes a guide set itself up anew at its next call."""
    inner = [getattr(guide, name, None) for name in ("base", "guide")]
    for one in (guide, *inner):
        if isinstance(one, AutoGuide):
            for part in _parts(one):
                part.prototype_trace = None


def freezes_data(guide: Any) -> bool:
    """Whether a guide keeps the data of its first call for good."""
    return isinstance(guide, AutoDAIS | AutoSemiDAIS | AutoSurrogateLikelihoodDAIS)
