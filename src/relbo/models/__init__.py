"""Densities and models that the experiments are about."""

from relbo.models._funnel import FUNNEL_SCALE as FUNNEL_SCALE
from relbo.models._funnel import funnel_logdensity as funnel_logdensity
