"""relbo: variational inference with samplers inside.

Names are imported when they are first asked for: `relbo --help` need not wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relbo import evaluate as evaluate
    from relbo._parameters import PerStep as PerStep
    from relbo._parameters import Positive as Positive
    from relbo._program import model_from_logdensity as model_from_logdensity
    from relbo._walk import RESULTS as RESULTS
    from relbo.annealing import Annealing as Annealing
    from relbo.bases import AbstractBase as AbstractBase
    from relbo.bases import AbstractNormal as AbstractNormal
    from relbo.bases import DiagonalNormal as DiagonalNormal
    from relbo.bases import Dirac as Dirac
    from relbo.bases import MultivariateNormal as MultivariateNormal
    from relbo.bases import StandardNormal as StandardNormal
    from relbo.bases import TransformedNormal as TransformedNormal
    from relbo.collapsing import collapse as collapse
    from relbo.elbo import PointwiseELBO as PointwiseELBO
    from relbo.elbo import RefinedELBO as RefinedELBO
    from relbo.entropy import AbstractEntropy as AbstractEntropy
    from relbo.entropy import ChangeOfVariables as ChangeOfVariables
    from relbo.entropy import Gaussian as Gaussian
    from relbo.entropy import MonteCarlo as MonteCarlo
    from relbo.entropy import Particle as Particle
    from relbo.entropy import ReverseKernel as ReverseKernel
    from relbo.guides import AutoRefined as AutoRefined
    from relbo.guides import refine as refine
    from relbo.inference import infer as infer
    from relbo.kernels import PSGLD as PSGLD
    from relbo.kernels import SGD as SGD
    from relbo.kernels import SGLD as SGLD
    from relbo.kernels import SGLDR as SGLDR
    from relbo.kernels import SVGD as SVGD
    from relbo.kernels import AbstractKernel as AbstractKernel
    from relbo.kernels import FokkerPlanckFlow as FokkerPlanckFlow
    from relbo.kernels import Underdamped as Underdamped
    from relbo.objective import Objective as Objective
    from relbo.objective import refined_objective as refined_objective
    from relbo.posterior import Check as Check
    from relbo.posterior import Posterior as Posterior
    from relbo.refinement import Refined as Refined
    from relbo.refinement import Refinement as Refinement
    from relbo.sampling import sample as sample
    from relbo.training import Fit as Fit
    from relbo.training import fit as fit
    from relbo.validity import Bound as Bound
    from relbo.validity import bound as bound
    from relbo.validity import validity_table as validity_table

__version__ = "0.1.0"

# The same once more, for those who run it; a test holds the two together.
_NAMES = {
    "relbo._parameters": "PerStep Positive",
    "relbo._program": "model_from_logdensity",
    "relbo._walk": "RESULTS",
    "relbo.annealing": "Annealing",
    "relbo.bases": "AbstractBase AbstractNormal DiagonalNormal Dirac "
    "MultivariateNormal StandardNormal TransformedNormal",
    "relbo.collapsing": "collapse",
    "relbo.elbo": "PointwiseELBO RefinedELBO",
    "relbo.entropy": "AbstractEntropy ChangeOfVariables Gaussian MonteCarlo "
    "Particle ReverseKernel",
    "relbo.guides": "AutoRefined refine",
    "relbo.inference": "infer",
    "relbo.kernels": "PSGLD SGD SGLD SGLDR SVGD AbstractKernel FokkerPlanckFlow Underdamped",
    "relbo.objective": "Objective refined_objective",
    "relbo.posterior": "Check Posterior",
    "relbo.refinement": "Refined Refinement",
    "relbo.sampling": "sample",
    "relbo.training": "Fit fit",
    "relbo.validity": "Bound bound validity_table",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_ROOM_NAMES = (
    "annealing bases collapsing data diagnostics distributed elbo entropy evaluate experiments "
    "guides inference kernels models objective posterior refinement sampling training validity"
)
_ROOMS = _ROOM_NAMES.split()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"relbo.{name}")
    else:
        raise AttributeError(f"module 'relbo' has no attribute {name!r}")
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
