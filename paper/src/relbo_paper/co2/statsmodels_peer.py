"""The structural model of statsmodels, for comparison where it is installed."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import numpy as np

from relbo.evaluate import NormalForecast

NOT_INSTALLED = "statsmodels is not installed: pip install 'relbo-paper[compare]'"


def is_installed() -> bool:
    return find_spec("statsmodels") is not None


def peer_forecast(series: np.ndarray, period: int, num_steps: int) -> NormalForecast:
    """Fits a local linear trend with seasons by maximum likelihood and forecasts."""
    # Imported here because it takes a second and most commands do not need it.
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    structural: Any = UnobservedComponents
    model = structural(np.asarray(series, float), level="lltrend", seasonal=period)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an estimate of zero for a scale is not a failure
        fitted = model.fit(disp=0, maxiter=500)
    ahead = fitted.get_forecast(num_steps)
    return NormalForecast(
        jnp.asarray(np.asarray(ahead.predicted_mean)), jnp.asarray(np.asarray(ahead.se_mean))
    )
