"""Normals fitted to a density by natural gradients or to draws, on the host.

Everything is NumPy in double precision around one function that evaluates the model at many
points: nothing else is compiled, and coordinates of very different scales do no harm.
"""

from relbo.gaussian.annealed import annealed_draws as annealed_draws
from relbo.gaussian.annealed import reversed_log_weights as reversed_log_weights
from relbo.gaussian.evaluation import Evaluate as Evaluate
from relbo.gaussian.evaluation import WhiteEvaluation as WhiteEvaluation
from relbo.gaussian.evaluation import WhiteningMap as WhiteningMap
from relbo.gaussian.evaluation import compiled_evaluate as compiled_evaluate
from relbo.gaussian.evaluation import evaluate_white as evaluate_white
from relbo.gaussian.evaluation import white_logdensity as white_logdensity
from relbo.gaussian.evaluation import whitening_map as whitening_map
from relbo.gaussian.factors import LowRankFactor as LowRankFactor
from relbo.gaussian.fisher import normal_of_draws as normal_of_draws
from relbo.gaussian.fitting import DENSE_LIMIT as DENSE_LIMIT
from relbo.gaussian.fitting import FitState as FitState
from relbo.gaussian.fitting import NormalFitter as NormalFitter
from relbo.gaussian.fitting import Report as Report
from relbo.gaussian.fitting import continued_fit as continued_fit
from relbo.gaussian.fitting import fit_step as fit_step
from relbo.gaussian.fitting import is_apart as is_apart
from relbo.gaussian.fitting import narrow_normal as narrow_normal
from relbo.gaussian.fitting import points_per_step as points_per_step
from relbo.gaussian.moments import whitening_of_draws as whitening_of_draws
from relbo.gaussian.nearest import nearest_mode as nearest_mode
from relbo.gaussian.starts import plain_normal as plain_normal
from relbo.gaussian.stretching import num_axes as num_axes
from relbo.gaussian.stretching import stretched_normal as stretched_normal
from relbo.gaussian.whitening import Dependence as Dependence
from relbo.gaussian.whitening import WhiteningNormal as WhiteningNormal
