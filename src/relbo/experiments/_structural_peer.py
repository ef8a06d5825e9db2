"""statsmodels' structural model, run side by side where it is installed."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import numpy as np

from relbo.evaluate import NormalForecast

NOT_INSTALLED = "statsmodels is not installed: pip install 'relbo[compare]'"


def is_installed() -> bool:
    return find_spec("statsmodels") is not None


def peer_forecast(series: np.ndarray, period: int, num_steps: int) -> NormalForecast:
    """Local linear trend and seasons fitted by maximum likelihood, then forecast."""
    # It takes a second to import, and most commands do without.
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    structural: Any = UnobservedComponents
    model = structural(np.asarray(series, float), level="lltrend", seasonal=period)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scale at zero is no failure to converge
        fitted = model.fit(disp=0, maxiter=500)
    ahead = fitted.get_forecast(num_steps)
    return NormalForecast(
        jnp.asarray(np.asarray(ahead.predicted_mean)), jnp.asarray(np.asarray(ahead.se_mean))
    )
