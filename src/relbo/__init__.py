"""relbo: variational inference with samplers inside.

Names are imported on first use, so that `relbo --help` does not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relbo import evaluate as evaluate
    from relbo._infer import infer as infer
    from relbo.core.accounts import AbstractAccount as AbstractAccount
    from relbo.core.accounts import ChangeOfVariablesAccount as ChangeOfVariablesAccount
    from relbo.core.accounts import GaussianAccount as GaussianAccount
    from relbo.core.accounts import MonteCarloAccount as MonteCarloAccount
    from relbo.core.accounts import ParticleAccount as ParticleAccount
    from relbo.core.accounts import ReverseKernelAccount as ReverseKernelAccount
    from relbo.core.annealing import Annealing as Annealing
    from relbo.core.bases import AbstractBase as AbstractBase
    from relbo.core.bases import AbstractNormal as AbstractNormal
    from relbo.core.bases import DiagonalNormal as DiagonalNormal
    from relbo.core.bases import Dirac as Dirac
    from relbo.core.bases import MultivariateNormal as MultivariateNormal
    from relbo.core.bases import StandardNormal as StandardNormal
    from relbo.core.bases import TransformedNormal as TransformedNormal
    from relbo.core.draws import Refined as Refined
    from relbo.core.dynamics import leapfrog as leapfrog
    from relbo.core.kernels import PSGLD as PSGLD
    from relbo.core.kernels import SGD as SGD
    from relbo.core.kernels import SGLD as SGLD
    from relbo.core.kernels import SGLDR as SGLDR
    from relbo.core.kernels import SVGD as SVGD
    from relbo.core.kernels import AbstractKernel as AbstractKernel
    from relbo.core.kernels import FokkerPlanckFlow as FokkerPlanckFlow
    from relbo.core.kernels import Underdamped as Underdamped
    from relbo.core.loop import RESULTS as RESULTS
    from relbo.core.loop import Execution as Execution
    from relbo.core.objective import Objective as Objective
    from relbo.core.objective import refined_objective as refined_objective
    from relbo.core.parameters import PerStep as PerStep
    from relbo.core.parameters import Positive as Positive
    from relbo.core.refinement import Refinement as Refinement
    from relbo.core.validity import Bound as Bound
    from relbo.core.validity import bound as bound
    from relbo.core.validity import validity_table as validity_table
    from relbo.core.weights import log_mean_exp as log_mean_exp
    from relbo.guides import AutoRefined as AutoRefined
    from relbo.guides import PointwiseELBO as PointwiseELBO
    from relbo.guides import RefinedELBO as RefinedELBO
    from relbo.guides import refine as refine
    from relbo.problem import collapse as collapse
    from relbo.problem import model_from_logdensity as model_from_logdensity
    from relbo.sampling import Check as Check
    from relbo.sampling import Posterior as Posterior
    from relbo.sampling import sample as sample
    from relbo.training import Fit as Fit
    from relbo.training import Rows as Rows
    from relbo.training import Starts as Starts
    from relbo.training import Stopping as Stopping
    from relbo.training import fit as fit

__version__ = "0.2.0"

# The same names for use at run time; a test keeps the two lists equal.
_NAMES = {
    "relbo._infer": "infer",
    "relbo.core.accounts": "AbstractAccount ChangeOfVariablesAccount GaussianAccount "
    "MonteCarloAccount ParticleAccount ReverseKernelAccount",
    "relbo.core.annealing": "Annealing",
    "relbo.core.bases": "AbstractBase AbstractNormal DiagonalNormal Dirac "
    "MultivariateNormal StandardNormal TransformedNormal",
    "relbo.core.draws": "Refined",
    "relbo.core.dynamics": "leapfrog",
    "relbo.core.kernels": "PSGLD SGD SGLD SGLDR SVGD "
    "AbstractKernel FokkerPlanckFlow Underdamped",
    "relbo.core.loop": "RESULTS Execution",
    "relbo.core.objective": "Objective refined_objective",
    "relbo.core.parameters": "PerStep Positive",
    "relbo.core.refinement": "Refinement",
    "relbo.core.validity": "Bound bound validity_table",
    "relbo.core.weights": "log_mean_exp",
    "relbo.guides": "AutoRefined PointwiseELBO RefinedELBO refine",
    "relbo.problem": "collapse model_from_logdensity",
    "relbo.sampling": "Check Posterior sample",
    "relbo.training": "Fit Rows Starts Stopping fit",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_ROOMS = [
    "core",
    "data",
    "distributed",
    "evaluate",
    "guides",
    "problem",
    "sampling",
    "statespace",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"relbo.{name}")
    else:
        raise AttributeError(f"module 'relbo' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
