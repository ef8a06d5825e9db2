"""Densities and models that the experiments are about, for use on their own as well."""

from relbo.models._distributions import HiddenMarkovSeries as HiddenMarkovSeries
from relbo.models._distributions import LinearGaussianSeries as LinearGaussianSeries
from relbo.models._dlm import Block as Block
from relbo.models._dlm import autoregression as autoregression
from relbo.models._dlm import dlm as dlm
from relbo.models._dlm import local_level as local_level
from relbo.models._dlm import local_linear_trend as local_linear_trend
from relbo.models._dlm import regression as regression
from relbo.models._dlm import seasonal as seasonal
from relbo.models._funnel import FUNNEL_SCALE as FUNNEL_SCALE
from relbo.models._funnel import funnel_logdensity as funnel_logdensity
from relbo.models._hmm import FilteredStates as FilteredStates
from relbo.models._hmm import HiddenMarkov as HiddenMarkov
from relbo.models._hmm import SimulatedStates as SimulatedStates
from relbo.models._hmm import hidden_markov_model as hidden_markov_model
from relbo.models._kalman import Filtered as Filtered
from relbo.models._kalman import Simulated as Simulated
from relbo.models._kalman import Smoothed as Smoothed
from relbo.models._linear_gaussian import LinearGaussian as LinearGaussian
from relbo.models._structural import SeriesScale as SeriesScale
from relbo.models._structural import StructuralModel as StructuralModel
