"""Every kernel and every account: the laws run on all of them.

A new kernel or account needs one entry here, and nothing else in the tests.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import relbo

KERNELS: dict[str, Callable[..., Any]] = {
    "sgd": relbo.SGD,
    "sgld": relbo.SGLD,
    "psgld-rmsprop": lambda step_size: relbo.PSGLD(step_size),
    "psgld-local": lambda step_size: relbo.PSGLD(step_size, metric="local", damping=1.0),
    "psgld-constant": lambda step_size: relbo.PSGLD(step_size, metric=0.7),
    "svgd": relbo.SVGD,
    "svgd-bandwidth": lambda step_size: relbo.SVGD(step_size, bandwidth=1.5),
    "sgldr": relbo.SGLDR,
    "fokker-planck": relbo.FokkerPlanckFlow,
    "underdamped": relbo.Underdamped,
    "hmc": lambda step_size: relbo.Underdamped(step_size, 0.0, metric=1.3, num_leapfrogs=2),
}

ACCOUNTS: dict[str, Callable[[], Any]] = {
    "particle": relbo.Particle,
    "monte-carlo": relbo.MonteCarlo,
    "gaussian": relbo.Gaussian,
    "gaussian-draw": lambda: relbo.Gaussian("draw"),
    "change-of-variables": relbo.ChangeOfVariables,
    "reverse-kernel": relbo.ReverseKernel,
}


def _is_refused(kernel: str, account: str) -> bool:
    try:
        relbo.bound(KERNELS[kernel](0.1), ACCOUNTS[account](), 1)
    except ValueError:
        return True
    return False


_ALL = list(product(KERNELS, ACCOUNTS))
REFUSED = [pair for pair in _ALL if _is_refused(*pair)]
PAIRS = [pair for pair in _ALL if pair not in REFUSED]
# Every kernel once and every account once, for laws that do not mix the two.
MEMBERS = [
    next(pair for pair in reversed(PAIRS) if pair[0] == kernel) for kernel in KERNELS
] + [next(pair for pair in PAIRS if pair[1] == account) for account in ACCOUNTS]
VALID = [
    (kernel, account)
    for kernel, account in PAIRS
    if relbo.bound(KERNELS[kernel](0.1), ACCOUNTS[account](), 1).valid is not False
]
NUM_PARTICLES = 3


def make(kernel: str, account: str, step_size: Any = 0.1, **options: Any) -> relbo.Refinement:
    return relbo.Refinement(KERNELS[kernel](step_size), ACCOUNTS[account](), **options)


def particles(refinement: relbo.Refinement) -> dict[str, int]:
    """What a call of the refinement needs beyond its arguments."""
    return {"num_particles": NUM_PARTICLES} if refinement.kernel.interacting else {}
