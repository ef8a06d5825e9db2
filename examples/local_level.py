"""A state-space model: the level of the Nile is a random walk, observed with noise.

Annual flow at Aswan, 1871 to 1970, in 10^8 cubic metres (Cobb 1978; public domain). The hundred
levels are integrated out by a Kalman filter, so that two scales remain. Maximum likelihood
gives 122.9 and 38.3 (Durbin and Koopman, Time Series Analysis by State Space Methods).
"""

import numpyro
import numpyro.distributions as dist

from relbo.statespace import LinearGaussianSeries, dlm, local_level


def model(flow):
    noise_scale = numpyro.sample("noise_scale", dist.HalfNormal(500.0))
    level_scale = numpyro.sample("level_scale", dist.HalfNormal(500.0))
    level = local_level(level_scale, initial_mean=1000.0, initial_scale=1000.0)
    river = dlm(level, observation_scale=noise_scale)
    numpyro.sample("flow", LinearGaussianSeries(river, len(flow)), obs=flow)
