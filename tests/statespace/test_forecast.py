"""Forecasts in one call: what they take, what they return, and what they say of themselves."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from relbo.evaluate import Evaluation, LogNormalMixtureForecast, NormalMixtureForecast, coverage
from relbo.statespace import forecast
from relbo.statespace.dated_series import read_series
from relbo.statespace.forecast_check import ForecastCheck, HeldOut, compare_with_held_out

STEPS = np.arange(44)
RNG = np.random.default_rng(0)
PATTERN = np.tile([3.0, -1, 0, -2], 11)
ADDITIVE = 50 + 0.5 * STEPS + PATTERN + 0.5 * RNG.normal(size=44)
GROWING = np.exp(0.05 * STEPS + 0.1 * PATTERN + 0.02 * RNG.normal(size=44))
QUARTERS = pd.date_range("2010-01-01", periods=44, freq="QS")


@cache
def additive():
    return forecast(pd.Series(ADDITIVE[:40], QUARTERS[:40], name="sales"), horizon=4, season=4)


@cache
def growing():
    return forecast(list(GROWING[:40]), horizon=4, season=4)


def test_forecast_covers_what_comes_next():
    for made, series in ((additive(), ADDITIVE), (growing(), GROWING)):
        assert float(coverage(made.distribution, series[40:])) >= 0.75
        naive = np.abs(series[36:40] - series[40:]).mean()
        assert np.abs(made.quantile(0.5).to_numpy() - series[40:]).mean() < naive


def test_the_logarithm_is_used_for_seasons_that_grow():
    assert additive().transform == "none"
    assert isinstance(additive().distribution, NormalMixtureForecast)
    assert growing().transform == "log"
    assert sum(growing().trends.values()) == pytest.approx(1.0)
    assert growing().trends["none"] < 0.01
    assert isinstance(growing().distribution, LogNormalMixtureForecast)


def test_frame_has_dates_and_quantiles_in_order():
    frame = additive().to_frame()
    assert list(frame.columns) == ["mean", "2.5%", "25%", "50%", "75%", "97.5%"]
    assert list(frame.index) == list(QUARTERS[40:])
    assert (np.diff(frame.iloc[:, 1:].to_numpy(), axis=1) > 0).all()
    assert "2020-01-01" in str(additive())
    assert "2020-01-01" in additive()._repr_html_()


def test_arrays_have_step_numbers():
    assert list(growing().index) == [40, 41, 42, 43]
    np.testing.assert_allclose(growing().history, GROWING[:40])


def test_the_fan_has_dates_on_its_axis():
    axes = additive().plot()
    try:
        low, high = axes.get_xlim()
        assert low < plt.matplotlib.dates.date2num(QUARTERS[40]) < high
        assert axes.get_ylabel() == "sales"
        labels = {text.get_text() for text in axes.get_legend().get_texts()}
        assert labels == {"95 % interval", "50 % interval", "median", "observed"}
        _, given = plt.subplots()
        assert growing().plot(given) is given
    finally:
        plt.close("all")


def test_check_forecasts_the_last_values():
    check = additive().check()
    assert check.trustworthy
    assert check.held_out.number == 4
    assert check.held_out.covered >= 0.5
    assert "The last 4 values" in str(check)


def test_missing_values_are_left_out():
    series = ADDITIVE[:40].copy()
    series[[5, 17]] = np.nan
    found = forecast(series, 4, 4).quantile(0.5).to_numpy()
    np.testing.assert_allclose(found, additive().quantile(0.5).to_numpy(), atol=1.0)


def evaluation(ess, k):
    return Evaluation(-1.0, 0.1, "fitted t", True, 2000, ess, k)


@pytest.mark.parametrize(
    ("weights", "held_out", "trusted", "words"),
    [
        (evaluation(900.0, 0.1), HeldOut(24, 0.95, 1.0, 2.0), True, "Trust it"),
        (evaluation(900.0, 0.1), HeldOut(24, 0.25, 1.0, 2.0), False, "too narrow"),
        (evaluation(900.0, 0.1), HeldOut(24, 0.95, 3.0, 2.0), True, "would have been closer"),
        (evaluation(20.0, 0.1), HeldOut(24, 0.95, 1.0, 2.0), False, "hard to sample"),
        (evaluation(900.0, 0.9), None, False, "too short"),
    ],
)
def test_verdicts(weights, held_out, trusted, words):
    check = ForecastCheck.of(weights, held_out)
    assert check.trustworthy == trusted
    assert words in str(check)
    assert "<p>" in check._repr_html_()


def test_held_out_values_are_compared_with_the_season_before():
    made = NormalMixtureForecast(np.zeros((1, 3)), 1.0)
    before = np.array([1.0, 2.0, np.nan, 2.5])
    found = compare_with_held_out(made, before, np.array([0.5, np.nan, 5.0]), 2)
    # The season repeats as 1, 2.5, 1.
    assert found == HeldOut(2, 0.5, pytest.approx(2.75), pytest.approx(2.25))


class Polars:
    """A column with the methods of polars'."""

    name = "y"

    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return np.array(self._values)


def test_series_are_read_from_what_people_hold():
    months = np.array(["2020-01", "2020-02", "2020-03"], "datetime64[M]")
    read = read_series([1, None, 3], months)
    assert np.isnan(read.values[1])
    assert str(read.labels_ahead(2)[-1].date()) == "2020-05-01"
    read = read_series(Polars([1.0, 2.0, 3.0]), Polars(months))
    assert (read.name, str(read.labels_ahead(1)[0].date())) == ("y", "2020-04-01")
    periods = pd.Series([1.0, 2, 3], pd.period_range("2020-01", periods=3, freq="M"))
    assert str(read_series(periods).labels_ahead(1)[0]) == "2020-04"
    years = pd.Series([1.0, 2, 3], [1871, 1872, 1873])
    assert list(read_series(years).labels_ahead(2)) == [1874, 1875]
    assert list(read_series(pd.Series([1.0, 2], ["a", "b"])).labels_ahead(1)) == [2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: read_series(pd.DataFrame({"y": [1.0]})), "pick a column"),
        (lambda: read_series(["a", "b"]), "expected numbers"),
        (lambda: read_series(np.ones((2, 2))), "expected the shape"),
        (lambda: read_series([1.0, np.inf]), "finite"),
        (lambda: read_series([1.0, 2.0], ["x", "y"]), "dates: expected dates"),
        (lambda: read_series([1.0, 2.0], QUARTERS[:3]), "dates: expected one for each"),
        (lambda: read_series(np.ones(3), QUARTERS[[0, 1, 3]]), "evenly spaced"),
        (lambda: read_series(np.ones(4), QUARTERS[[0, 2, 1, 3]]), "evenly spaced"),
        (lambda: forecast(ADDITIVE, 0), "horizon"),
        (lambda: forecast(ADDITIVE, 4, 1), "season"),
        (lambda: forecast(-ADDITIVE, 4, transform="log"), "above zero"),
        (lambda: forecast(np.ones(20), 4), "constant"),
        (lambda: forecast(ADDITIVE[:5], 4, 4), "at least 7 steps"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
