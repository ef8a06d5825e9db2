"""How good it is: marginal likelihoods, bounds held against them, and forecast scores."""

from relbo.evaluate.scores import AbstractForecast as AbstractForecast
from relbo.evaluate.scores import AbstractRealForecast as AbstractRealForecast
from relbo.evaluate.scores import CategoricalForecast as CategoricalForecast
from relbo.evaluate.scores import DrawsForecast as DrawsForecast
from relbo.evaluate.scores import NormalForecast as NormalForecast
from relbo.evaluate.scores import NormalMixtureForecast as NormalMixtureForecast
from relbo.evaluate.scores import accuracy as accuracy
from relbo.evaluate.scores import central_interval as central_interval
from relbo.evaluate.scores import coverage as coverage
from relbo.evaluate.scores import covered as covered
from relbo.evaluate.scores import crps as crps
from relbo.evaluate.scores import interval_score as interval_score
from relbo.evaluate.scores import log_score as log_score
from relbo.evaluate.scores import mae as mae
from relbo.evaluate.scores import predictive_entropy as predictive_entropy
