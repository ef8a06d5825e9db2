"""The refinement of a guide, from its options."""

import inspect
from collections.abc import Iterable

from relbo.core.checks import check_instance
from relbo.core.kernels import AbstractKernel
from relbo.core.refinement import Refinement


def chosen_refinement(
    refinement: Refinement | None, kernel: AbstractKernel | None, num_steps: int | None
) -> Refinement:
    """Returns the given refinement, or the one that the shorthand options describe."""
    if refinement is None:
        return (
            Refinement(kernel) if num_steps is None else Refinement(kernel, num_steps=num_steps)
        )
    if kernel is not None or num_steps is not None:
        name = "num_steps" if kernel is None else "kernel"
        raise ValueError(
            f"{name}: expected refinement= or its shorthand kernel= and num_steps=, got both: "
            "use refinement=relbo.Refinement(kernel, num_steps=...)"
        )
    check_instance("refinement", refinement, Refinement, "relbo.Refinement(num_steps=8)")
    return refinement


def check_options(names: Iterable[str]) -> None:
    """Refuses options of a refinement that were given to a guide."""
    misplaced = sorted(inspect.signature(Refinement).parameters.keys() & set(names))
    if misplaced:
        raise ValueError(
            f"{misplaced[0]}: this is an option of the refinement, not of the guide: use "
            f"refinement=relbo.Refinement({misplaced[0]}=...)"
        )
