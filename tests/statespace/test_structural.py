"""The structural model: priors in the scale of the series, forecasts and errors."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

from relbo.statespace import StructuralModel, dlm, local_linear_trend, seasonal

RNG = np.random.default_rng(0)
SERIES = 50 + np.arange(40) * 0.5 + np.tile([3.0, -1, 0, -2], 10) + RNG.normal(size=40)
VALUES = {
    "observation_scale": jnp.array(0.5),
    "level_scale": jnp.array(0.3),
    "slope_scale": jnp.array(0.01),
    "seasonal_scale": jnp.array(0.1),
    "level_memory": jnp.array(10.0),
}


def without_memory():
    return {name: value for name, value in VALUES.items() if name != "level_memory"}


def priors(model, series):
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(series)
    return {name: site["fn"] for name, site in trace.items() if name != "series"}


def test_without_forgetting_it_is_the_model_of_the_paper(x64):
    model = StructuralModel(4, forgetting=False)
    scale = model.scale_of(SERIES)
    wide = 2.0 * scale.spread
    expected = dlm(
        local_linear_trend(
            0.3,
            0.01,
            initial_mean=jnp.stack([scale.level, jnp.zeros(())]),
            initial_scale=jnp.stack([wide, wide / 4]),
        ),
        seasonal(4, 0.1, initial_scale=wide),
        observation_scale=0.5,
    ).log_likelihood(SERIES)
    prior = sum(priors(model, SERIES)[n].log_prob(v) for n, v in without_memory().items())
    found, _ = log_density(model, (SERIES,), {}, without_memory())
    assert float(found) == pytest.approx(float(expected + prior), rel=1e-7)


def test_a_long_memory_forecasts_like_a_random_walk(x64):
    forgetting, walking = StructuralModel(4), StructuralModel(4, forgetting=False)
    long = forgetting.process({**VALUES, "level_memory": jnp.array(1e5)}, SERIES)
    walk = walking.process(without_memory(), SERIES)
    ahead, ahead_of_walk = long.forecast(SERIES, 6), walk.forecast(SERIES, 6)
    np.testing.assert_allclose(ahead.loc, ahead_of_walk.loc, rtol=1e-3)
    np.testing.assert_allclose(ahead.scale, ahead_of_walk.scale, rtol=2e-2)


@pytest.mark.parametrize("period", [4, None])
def test_forecasts_follow_a_shift_and_a_scaling_of_the_data(x64, period):
    model = StructuralModel(period)
    values = {name: VALUES[name] for name in priors(model, SERIES)}
    draws = {name: value[None] for name, value in values.items()}
    scaled = {n: v if n == "level_memory" else 1_000 * v for n, v in draws.items()}
    here = model.forecast(draws, SERIES, 5)
    there = model.forecast(scaled, 1_000 * SERIES - 7, 5)
    np.testing.assert_allclose(there.loc, 1_000 * here.loc - 7, rtol=1e-6)
    np.testing.assert_allclose(there.scale, 1_000 * here.scale, rtol=1e-6)
    for name, prior in priors(model, 1_000 * SERIES - 7).items():
        factor = 1.0 if name == "level_memory" else 1_000.0
        np.testing.assert_allclose(prior.mean, factor * priors(model, SERIES)[name].mean)


def test_the_unit_measures_what_trend_and_seasons_do_not_explain(x64):
    still = np.arange(40) * 0.5 + np.tile([3.0, -1, 0, -2], 10)
    noisy = still + 0.1 * RNG.normal(size=40)
    unit = StructuralModel(4).scale_of(noisy).unit
    np.testing.assert_allclose(unit, 0.2, rtol=0.3)  # sqrt(4) times the noise
    scale = StructuralModel(4).scale_of(still)
    np.testing.assert_allclose(scale.unit, 1e-3 * scale.spread)


def test_missing_steps_are_ignored(x64):
    gappy = np.where((np.arange(40) > 10) & (np.arange(40) < 18), np.nan, SERIES)
    model = StructuralModel(4)
    found, _ = log_density(model, (gappy,), {}, VALUES)
    assert np.isfinite(found)
    process = model.process(VALUES, gappy)
    mask = ~np.isnan(gappy)
    filled = np.where(mask, gappy, 1e6)
    assert float(process.log_likelihood(gappy)) == float(process.log_likelihood(filled, mask))


def test_covariates_improve_the_forecast(x64):
    covariates = RNG.normal(size=(45, 1))
    series = SERIES + 5.0 * covariates[:40, 0]
    plain, informed = StructuralModel(4), StructuralModel(4, covariates)
    draws = {name: value[None] for name, value in VALUES.items()}
    error = lambda model: jnp.std(
        model.forecast(draws, series, 5).loc[0] - 5.0 * covariates[40:, 0] - 60.0
    )
    coefficient = informed.process(VALUES, series).filter(series).mean[-1, -1]
    np.testing.assert_allclose(coefficient, 5.0, atol=0.3)
    assert error(informed) < error(plain)


def test_gradients_are_finite():
    def loss(values):
        return log_density(StructuralModel(4), (SERIES,), {}, values)[0]

    slope = jax.grad(loss)(VALUES)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slope))


def test_the_forecast_has_one_component_per_draw(x64):
    model = StructuralModel(4)
    draws = {name: jnp.stack([value, 2 * value]) for name, value in VALUES.items()}
    forecast = model.forecast(draws, SERIES, 3)
    assert forecast.loc.shape == (2, 3)
    second = model.process({n: v[1] for n, v in draws.items()}, SERIES).forecast(SERIES, 3)
    np.testing.assert_allclose(forecast.loc[1], second.loc, rtol=1e-9)


def test_a_series_may_be_a_list_or_a_column(x64):
    pd = pytest.importorskip("pandas")
    months = pd.period_range("2020-01", periods=len(SERIES), freq="M")
    column = pd.Series(np.asarray(SERIES), months, name="sales")
    draws = {name: value[None] for name, value in VALUES.items()}
    forecast = lambda series: StructuralModel(4).forecast(draws, series, 2).loc
    expected = forecast(SERIES)
    for series in (column, column.tolist(), column.to_xarray()):
        np.testing.assert_array_equal(forecast(series), expected)
    with pytest.raises(ValueError, match=r"series: the column 'sales' has '.*' in it"):
        forecast(column.astype(str))
    process = StructuralModel(4).process(VALUES, column)
    assert process.forecast(column.tolist(), 2).loc.shape == (2,)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.full(40, np.nan), "only NaN"),
        (np.full(40, 3.0), "the constant 3"),
        (np.zeros(0), "at least one step"),
        (SERIES[:6], "at least 7 steps"),
        (SERIES.reshape(2, 20), r"expected the shape \[t\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:Mean of empty", "ignore:Degrees of")
def test_invalid_series_raise_an_error(series, message):
    with pytest.raises(ValueError, match=message):
        handlers.seed(StructuralModel(4), jr.key(0))(series)


def test_a_period_of_one_is_refused():
    with pytest.raises(ValueError, match="period"):
        StructuralModel(1)


def test_the_slope_may_change_fast_or_not_at_all(x64):
    slow, fast = (priors(StructuralModel(4, slope=kind), SERIES) for kind in ("slow", "fast"))
    assert float(fast["slope_scale"].scale) == float(fast["level_scale"].scale)
    assert float(slow["slope_scale"].scale) < 0.1 * float(fast["slope_scale"].scale)
    flat = StructuralModel(4, slope="none")
    assert "slope_scale" not in priors(flat, SERIES)
    process = flat.process(VALUES, SERIES)
    assert process.num_states == StructuralModel(4).process(VALUES, SERIES).num_states - 1
