"""Scores of `relbo.statespace.forecast` beside statsmodels' UnobservedComponents and ETS.

Six series, each cut into windows: carbon dioxide at Mauna Loa (24 windows of 120 + 24 months),
airline passengers, and four series that come with statsmodels: the Nile, sunspots, the real
gross domestic product of the United States and the temperature of the sea in El Nino's region.
Every method may forecast the logarithm instead and chooses by its own criterion. The windows
were fixed before the first run; the kinds of trend in relbo's forecast were changed after it,
by results on other series. Every result is printed.

It prints means over the windows: the mean absolute error of the median, the score of the 95 %
interval, the log score and the share of values in the interval; and CPU seconds per window,
compilation included. It needs statsmodels, of the `test` group.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from _common import argument_parser, write_results
from _forecast_rivals import exponential_smoothing, unobserved_components
from relbo.data import load_co2
from relbo.evaluate import AbstractRealForecast
from relbo.statespace import forecast
from relbo_paper.co2.scores import scores
from series import PASSENGERS

SHOWN = ("MAE", "interval score", "log score", "coverage")
LARGER_IS_BETTER = ("log score",)


class SeriesCase(NamedTuple):
    """A series and how it is cut into windows."""

    load: Callable[[], np.ndarray]
    season: int | None
    num_train: int
    horizon: int
    stride: int

    def windows(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns pairs of training and test data."""
        values, length = self.load(), self.num_train + self.horizon
        wholes = [
            values[origin : origin + length]
            for origin in range(0, len(values) - length + 1, self.stride)
        ]
        return [(whole[: self.num_train], whole[self.num_train :]) for whole in wholes]


def _statsmodels(name: str, column: str) -> Callable[[], np.ndarray]:
    def load() -> np.ndarray:
        import statsmodels.api as sm

        return getattr(sm.datasets, name).load_pandas().data[column].to_numpy(float)

    return load


def _sea_temperature() -> np.ndarray:
    import statsmodels.api as sm

    table: Any = sm.datasets.elnino.load_pandas().data
    return table.iloc[:, 1:].to_numpy(float).ravel()


CASES = {
    "CO2": SeriesCase(lambda: load_co2().values, 12, 120, 24, 14),
    "air passengers": SeriesCase(lambda: np.array(PASSENGERS.split(), float), 12, 84, 24, 9),
    "Nile": SeriesCase(_statsmodels("nile", "volume"), None, 60, 10, 5),
    "sunspots": SeriesCase(_statsmodels("sunspots", "SUNACTIVITY"), 11, 120, 11, 16),
    "real GDP": SeriesCase(_statsmodels("macrodata", "realgdp"), None, 80, 8, 12),
    "sea temperature": SeriesCase(_sea_temperature, 12, 120, 24, 48),
}

Method = Callable[[np.ndarray, int | None, int], AbstractRealForecast]
METHODS: dict[str, Method] = {
    "relbo": lambda train, season, horizon: forecast(train, horizon, season).distribution,
    "UnobservedComponents": unobserved_components,
    "ETS": exponential_smoothing,
}


def score_case(case: SeriesCase, num_windows: int | None) -> dict[str, dict[str, Any]]:
    """Returns the mean and the standard error of each score, by method."""
    rows: dict[str, dict[str, Any]] = {}
    windows = case.windows()[:num_windows]
    for name, method in METHODS.items():
        begin = time.process_time()
        made = [method(train, case.season, case.horizon) for train, _ in windows]
        seconds = (time.process_time() - begin) / len(windows)
        found = [scores(each, test) for each, (_, test) in zip(made, windows, strict=True)]
        rows[name] = {"CPU seconds per window": seconds, "windows": len(windows)}
        for score in SHOWN:
            values = np.array([one[score] for one in found])
            rows[name][score] = float(values.mean())
            spread = values.std(ddof=1) if len(values) > 1 else np.nan
            rows[name][f"{score} stderr"] = float(spread / len(values) ** 0.5)
    return rows


def show(name: str, rows: dict[str, dict[str, Any]]) -> None:
    number = rows["relbo"]["windows"]
    print(f"{f'{name} ({number} windows)':32s}" + "".join(f"{score:>16s}" for score in SHOWN))
    for method, row in rows.items():
        cells = "".join(f"{row[score]:16.4g}" for score in SHOWN)
        print(f"  {method:30s}{cells}   {row['CPU seconds per window']:.1f} s", flush=True)


def count_wins(results: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns on how many series relbo is better, by rival and score."""
    wins: dict[str, Any] = {}
    for rival in METHODS:
        if rival == "relbo":
            continue
        for score in SHOWN[:3]:
            sign = 1.0 if score in LARGER_IS_BETTER else -1.0
            better = [
                sign * (r["relbo"][score] - r[rival][score]) > 0 for r in results.values()
            ]
            wins[f"better than {rival}, {score}"] = f"{sum(better)} of {len(better)} series"
    return wins


def main() -> None:
    args = argument_parser(__doc__).parse_args()
    begin = time.perf_counter()
    jax.config.update("jax_enable_x64", True)  # for the scores
    results = {}
    for name, case in CASES.items():
        results[name] = score_case(case, 2 if args.quick else None)
        show(name, results[name])
    wins = count_wins(results)
    for what, number in wins.items():
        print(f"{what}: {number}")
    everything = {"scores": results, "wins": wins}
    write_results(
        "forecasts", everything, quick=args.quick, seconds=time.perf_counter() - begin
    )


if __name__ == "__main__":
    main()
