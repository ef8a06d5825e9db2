"""Kinds of trend as data: the same model as `StructuralModel`, compiled once."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density

from relbo.statespace import StructuralModel, forecast
from relbo.statespace.structural import Trend
from relbo.statespace.trend_kinds import TREND_KINDS, TrendProgram, forecast_draws

RNG = np.random.default_rng(0)
SERIES = 50 + np.arange(40) * 0.5 + np.tile([3.0, -1, 0, -2], 10) + RNG.normal(size=40)
VALUES = {
    "observation_scale": 0.5,
    "level_scale": 0.3,
    "slope_scale": 0.01,
    "seasonal_scale": 0.1,
    "level_memory": 10.0,
}


@pytest.mark.parametrize("kind", ["slow", "fast", "none"])
def test_each_kind_is_the_structural_model_of_that_slope(x64, kind):
    program, model = TrendProgram(4), StructuralModel(4, slope=kind)
    data = program.pad(SERIES, 46, kind)
    assert len(data.values) == 48
    process = program.model.process_of_scale(VALUES, data.scale, data.trend)
    expected = model.process(VALUES, SERIES)
    assert float(process.log_likelihood(data.values)) == pytest.approx(
        float(expected.log_likelihood(SERIES)), rel=1e-9
    )
    draws = {name: jnp.full(2, value) for name, value in VALUES.items()}
    trends = Trend(*(jnp.full(2, value) for value in data.trend))
    mean, scale = forecast_draws(program.model, 6, data, draws, trends)
    ahead = model.forecast(draws, SERIES, 6)
    np.testing.assert_allclose(mean, ahead.loc, rtol=1e-7)
    np.testing.assert_allclose(scale, ahead.scale, rtol=1e-7)


def test_a_damped_trend_levels_off(x64):
    program = TrendProgram(None)
    draws = {name: jnp.full(1, VALUES[name]) for name in VALUES if name != "seasonal_scale"}
    ahead = {}
    for kind in TREND_KINDS:
        data = program.pad(SERIES, 240, kind)
        trends = Trend(*(jnp.full(1, value) for value in data.trend))
        means, _ = forecast_draws(program.model, 200, data, draws, trends)
        ahead[kind] = np.asarray(means[0])
    last_rise = {kind: path[-1] - path[-2] for kind, path in ahead.items()}
    first_rise = {kind: path[1] - path[0] for kind, path in ahead.items()}
    assert last_rise["slow"] > 0.3
    assert 0 <= last_rise["damped"] < 0.02 * first_rise["damped"]
    assert ahead["damped"][-1] > SERIES[-1]


def test_a_model_with_a_slope_has_the_priors_of_the_program(x64):
    program, model = TrendProgram(4), StructuralModel(4, slope="fast")
    values = {name: jnp.asarray(value) for name, value in VALUES.items()}
    found, _ = log_density(program, (program.pad(SERIES, 46, "fast"),), {}, values)
    expected, _ = log_density(model, (SERIES,), {}, values)
    assert float(found) == pytest.approx(float(expected), rel=1e-9)


def test_series_of_similar_length_and_the_check_share_one_program():
    # Nobody else forecasts with this season and horizon.
    forecast(SERIES[:39], horizon=7, season=5, num_draws=50)
    compiled = forecast_draws._cache_size()
    forecast(SERIES, horizon=7, season=5, num_draws=50).check()
    assert forecast_draws._cache_size() == compiled
