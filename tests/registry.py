"""Every kernel and every account, as the laws in `core/test_laws.py` need them.

The library's own registries are the source: a new kernel or account needs no entry here.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import equinox as eqx

import relbo
from relbo.core.accounts import ACCOUNTS
from relbo.core.kernels import KERNELS as REGISTERED

KERNELS: dict[str, Callable[..., Any]] = {
    **REGISTERED,
    # Options with code of their own.
    "SVGD (bandwidth)": partial(relbo.SVGD, bandwidth=1.5),
    "HMC": lambda step_size: relbo.Underdamped(step_size, 0.0, metric=1.3, num_leapfrogs=2),
}

Pair = tuple[str, str]


def _validity(pair: Pair) -> bool | str | None:
    try:
        return relbo.bound(KERNELS[pair[0]](0.1), ACCOUNTS[pair[1]](), 1).valid
    except ValueError:
        return "refused"


def _cover(pairs: list[Pair]) -> list[Pair]:
    """Few pairs in which every kernel and every account occurs."""
    chosen: list[Pair] = []
    count = lambda account: sum(account == other for _, other in chosen)
    for kernel in sorted(KERNELS, key=lambda name: sum(name == pair[0] for pair in pairs)):
        accounts = [account for name, account in pairs if name == kernel]
        chosen.append((kernel, min(accounts, key=count)))
    missing = [account for account in ACCOUNTS if count(account) == 0]
    return chosen + [next(p for p in pairs if p[1] == account) for account in missing]


_VALIDITY = {pair: _validity(pair) for pair in product(KERNELS, ACCOUNTS)}
REFUSED = [pair for pair, valid in _VALIDITY.items() if valid == "refused"]
PAIRS = [pair for pair, valid in _VALIDITY.items() if valid != "refused"]
VALID = [pair for pair in PAIRS if _VALIDITY[pair] is not False]
COVER = _cover(PAIRS)
"""For laws that do not mix the kernel and the account."""

NUM_PARTICLES = 3
PLAIN = {"anneal": False, "space": "unconstrained"}
"""Options of a refinement that walks in the space of the density without annealing."""


def plain_refinement(kernel: Any, account: Any = None, **options: Any) -> relbo.Refinement:
    """Returns a refinement that by default neither anneals nor whitens."""
    return relbo.Refinement(kernel, account, **{**PLAIN, **options})


def make(kernel: str, account: str, step_size: Any = 0.1, **options: Any) -> relbo.Refinement:
    """Returns a plain refinement of registered parts."""
    return plain_refinement(KERNELS[kernel](step_size), ACCOUNTS[account](), **options)


@eqx.filter_jit
def refine(refinement: relbo.Refinement, *args: Any, **numbers: int) -> relbo.Refined:
    """Calls a refinement as one compiled program."""
    return refinement(*args, **numbers)


def particles(refinement: relbo.Refinement) -> dict[str, int]:
    """Returns the arguments that a call of the refinement needs."""
    return {"num_particles": NUM_PARTICLES} if refinement.kernel.interacting else {}
