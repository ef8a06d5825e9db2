"""What a refinement returns: refined draws, and draws along chains."""

from typing import NamedTuple

from jaxtyping import Array, Bool, PyTree, Scalar

from relbo.core.loop import RESULTS


class Refined(NamedTuple):
    """Refined draws.

    Independent draws come first along the leading axes of all fields, then, in `position`
    alone, the particles of a kernel that moves them together.
    """

    position: PyTree
    log_q: Scalar | Array
    """The account's log q of the position (of all interacting particles together)."""
    logdensity: Scalar | Array | None
    """The log density at the position where a step has evaluated it already, else `None`."""
    result: RESULTS
    """How the walk ended. Where it failed, the position is the last good one."""
    one_to_one: Bool[Array, "*draws"]
    """False where a step was found to fold space under a change of variables; in the monotone
    form, also where it nearly does."""


class Path(NamedTuple):
    """Draws along a run.

    The leading axes of each position are the chains, the interacting particles of a chain, and
    the draws along it; the first two are absent where no number was given.
    """

    position: PyTree
    result: RESULTS
    """How each chain ended. A chain that failed stays at its last good position."""
