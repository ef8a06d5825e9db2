"""Densities, networks and autoencoders of the experiments."""

from relbo_paper.models.funnel import FUNNEL_SCALE as FUNNEL_SCALE
from relbo_paper.models.funnel import funnel_logdensity as funnel_logdensity
from relbo_paper.models.networks import DenseDecoder as DenseDecoder
from relbo_paper.models.networks import DenseLayers as DenseLayers
from relbo_paper.models.networks import NormalEncoder as NormalEncoder
from relbo_paper.models.vae import Autoencoder as Autoencoder
from relbo_paper.models.vae import PixelLogLikelihood as PixelLogLikelihood
from relbo_paper.models.vae import autoencoder as autoencoder
from relbo_paper.models.vae import bernoulli_pixels as bernoulli_pixels
