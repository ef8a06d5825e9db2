"""What is inferred: a model with its arguments, or a log density, read once as a `Problem`."""

from relbo.problem._collapse import collapse as collapse
from relbo.problem.foreign import ForeignDensity as ForeignDensity
from relbo.problem.front_ends import FRONT_ENDS as FRONT_ENDS
from relbo.problem.front_ends import FrontEnd as FrontEnd
from relbo.problem.front_ends import read as read
from relbo.problem.logdensity import LogDensityModel as LogDensityModel
from relbo.problem.logdensity import model_from_logdensity as model_from_logdensity
from relbo.problem.problem import AbstractProgram as AbstractProgram
from relbo.problem.problem import Problem as Problem
from relbo.problem.problem import Site as Site
