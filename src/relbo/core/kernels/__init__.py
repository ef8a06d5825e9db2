"""Kernels: how one step moves; one family per file, one contract for all."""

from collections.abc import Callable
from functools import partial

from relbo.core.kernels.contract import (
    AbstractDeterministicKernel as AbstractDeterministicKernel,
)
from relbo.core.kernels.contract import AbstractKernel as AbstractKernel
from relbo.core.kernels.contract import AbstractOneGradientKernel as AbstractOneGradientKernel
from relbo.core.kernels.contract import Arrival as Arrival
from relbo.core.kernels.contract import Departure as Departure
from relbo.core.kernels.fokker_planck import FokkerPlanckFlow as FokkerPlanckFlow
from relbo.core.kernels.langevin import PSGLD as PSGLD
from relbo.core.kernels.langevin import SGD as SGD
from relbo.core.kernels.langevin import SGLD as SGLD
from relbo.core.kernels.stein import SGLDR as SGLDR
from relbo.core.kernels.stein import SVGD as SVGD
from relbo.core.kernels.underdamped import Underdamped as Underdamped

KERNELS: dict[str, Callable[..., AbstractKernel]] = {
    "SGD": SGD,
    "SGLD": SGLD,
    'PSGLD (metric="rmsprop")': PSGLD,
    'PSGLD (metric="local")': partial(PSGLD, metric="local", damping=1.0),
    "PSGLD (constant metric)": partial(PSGLD, metric=0.7),
    "SVGD": SVGD,
    "SGLDR": SGLDR,
    "FokkerPlanckFlow": FokkerPlanckFlow,
    "Underdamped": Underdamped,
}
"""Constructors that take a step size, by name.

`validity_table` has a row for each entry, and the tests run every law on it.
"""
