"""What moves a particle: one family a file, one contract for all."""

from relbo.kernels._fokker_planck import FokkerPlanckFlow as FokkerPlanckFlow
from relbo.kernels._kernel import AbstractDeterministicKernel as AbstractDeterministicKernel
from relbo.kernels._kernel import AbstractKernel as AbstractKernel
from relbo.kernels._kernel import AbstractOneGradientKernel as AbstractOneGradientKernel
from relbo.kernels._kernel import Arrival as Arrival
from relbo.kernels._kernel import Departure as Departure
from relbo.kernels._langevin import PSGLD as PSGLD
from relbo.kernels._langevin import SGD as SGD
from relbo.kernels._langevin import SGLD as SGLD
from relbo.kernels._stein import SGLDR as SGLDR
from relbo.kernels._stein import SVGD as SVGD
from relbo.kernels._underdamped import Underdamped as Underdamped
