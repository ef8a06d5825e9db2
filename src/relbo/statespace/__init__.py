"""Time series with a hidden state: hidden Markov, dynamic linear and structural models."""

from relbo.statespace._hidden_markov_model import hidden_markov_model as hidden_markov_model
from relbo.statespace.distributions import HiddenMarkovSeries as HiddenMarkovSeries
from relbo.statespace.distributions import LinearGaussianSeries as LinearGaussianSeries
from relbo.statespace.dlm import Block as Block
from relbo.statespace.dlm import autoregression as autoregression
from relbo.statespace.dlm import dlm as dlm
from relbo.statespace.dlm import local_level as local_level
from relbo.statespace.dlm import local_linear_trend as local_linear_trend
from relbo.statespace.dlm import regression as regression
from relbo.statespace.dlm import seasonal as seasonal
from relbo.statespace.hidden_markov import HiddenMarkov as HiddenMarkov
from relbo.statespace.hidden_markov import HiddenMarkovFiltered as HiddenMarkovFiltered
from relbo.statespace.hidden_markov import HiddenMarkovSimulated as HiddenMarkovSimulated
from relbo.statespace.kalman import LinearGaussianFiltered as LinearGaussianFiltered
from relbo.statespace.kalman import LinearGaussianSimulated as LinearGaussianSimulated
from relbo.statespace.kalman import LinearGaussianSmoothed as LinearGaussianSmoothed
from relbo.statespace.linear_gaussian import LinearGaussian as LinearGaussian
from relbo.statespace.scale_prior import NormalScale as NormalScale
from relbo.statespace.structural import SeriesScale as SeriesScale
from relbo.statespace.structural import StructuralModel as StructuralModel
