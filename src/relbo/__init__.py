"""relbo: variational inference with samplers inside."""

from relbo._parameters import PerStep as PerStep
from relbo._parameters import Positive as Positive
from relbo._walk import RESULTS as RESULTS
from relbo.annealing import Annealing as Annealing
from relbo.bases import AbstractBase as AbstractBase
from relbo.bases import AbstractNormal as AbstractNormal
from relbo.bases import DiagonalNormal as DiagonalNormal
from relbo.bases import Dirac as Dirac
from relbo.bases import MultivariateNormal as MultivariateNormal
from relbo.bases import StandardNormal as StandardNormal
from relbo.bases import TransformedNormal as TransformedNormal
from relbo.entropy import AbstractEntropy as AbstractEntropy
from relbo.entropy import ChangeOfVariables as ChangeOfVariables
from relbo.entropy import Gaussian as Gaussian
from relbo.entropy import MonteCarlo as MonteCarlo
from relbo.entropy import Particle as Particle
from relbo.entropy import ReverseKernel as ReverseKernel
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
from relbo.refinement import Refined as Refined
from relbo.refinement import Refinement as Refinement
from relbo.validity import Bound as Bound
from relbo.validity import bound as bound
from relbo.validity import validity_table as validity_table

__version__ = "0.1.0"
