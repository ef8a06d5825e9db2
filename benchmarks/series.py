"""Forecasts of airline passengers, compared with statsmodels, and the posterior of the scales.

The series is the logarithm of monthly international airline passengers, 1949 to 1960 (series G
of Box and Jenkins, Time series analysis). The code of the `co2` experiment trains on windows of
84 months and forecasts the next 24: `relbo.statespace.StructuralModel` with its scales
integrated out, and statsmodels' UnobservedComponents. It prints means over the windows.

Then `relbo.infer` and NumPyro's NUTS (4 chains of 1000 + 1000, the faster of two ways to run
them) sample the posterior of the scales for the first 120 months. Times include compilation.

It needs statsmodels, of the `test` group.
"""

import time
from collections.abc import Callable
from typing import Any

import jax.random as jr
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import relbo
from _common import argument_parser, write_results
from relbo.statespace import StructuralModel, importance_draws
from relbo_paper.co2.scores import scores
from relbo_paper.co2.statsmodels_peer import peer_forecast

PERIOD, NUM_TRAIN, NUM_AHEAD, STRIDE = 12, 84, 24, 9
NUM_SAMPLED_MONTHS = 120
PASSENGERS = """
112 118 132 129 121 135 148 148 136 119 104 118  115 126 141 135 125 149 170 170 158 133 114 140
145 150 178 163 172 178 199 199 184 162 146 166  171 180 193 181 183 218 230 242 209 191 172 194
196 196 236 235 229 243 264 272 237 211 180 201  204 188 235 227 234 264 302 293 259 229 203 229
242 233 267 269 270 315 364 347 312 274 237 278  284 277 317 313 318 374 413 405 355 306 271 306
315 301 356 348 355 422 465 467 404 347 305 336  340 318 362 348 363 435 491 505 404 359 310 337
360 342 406 396 420 472 548 559 463 407 362 405  417 391 419 461 472 535 622 606 508 461 390 432
"""


def logarithms() -> np.ndarray:
    return np.log(np.array(PASSENGERS.split(), dtype=float))


def windows() -> tuple[np.ndarray, np.ndarray]:
    """Returns training and test data, one row per window."""
    series = logarithms()
    origins = range(0, len(series) - NUM_TRAIN - NUM_AHEAD + 1, STRIDE)
    whole = np.stack([series[origin : origin + NUM_TRAIN + NUM_AHEAD] for origin in origins])
    return whole[:, :NUM_TRAIN], whole[:, NUM_TRAIN:]


def structural(train: np.ndarray, model: StructuralModel) -> list[Any]:
    draws = [importance_draws(0, model, series, num_draws=200).draws for series in train]
    return [
        model.forecast(each, series, NUM_AHEAD)
        for each, series in zip(draws, train, strict=True)
    ]


def by_infer(series: np.ndarray) -> dict[str, np.ndarray]:
    """Returns draws by site, `[chains, draws]`."""
    return relbo.infer(jr.key(0), StructuralModel(PERIOD), (series,), progress=False).chains


def by_nuts(chain_method: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    def sample(series: np.ndarray) -> dict[str, np.ndarray]:
        mcmc = MCMC(
            NUTS(StructuralModel(PERIOD)),
            num_warmup=1000,
            num_samples=1000,
            num_chains=4,
            chain_method=chain_method,
            progress_bar=False,
        )
        mcmc.run(jr.key(0), series)
        draws = mcmc.get_samples(group_by_chain=True)
        return {name: np.asarray(values) for name, values in draws.items()}

    return sample


def timed(sample: Callable[[np.ndarray], dict[str, np.ndarray]]) -> dict[str, float]:
    """Returns the seconds, the smallest effective sample size and the largest R-hat."""
    begin = time.perf_counter()
    draws = sample(logarithms()[:NUM_SAMPLED_MONTHS])
    seconds = time.perf_counter() - begin
    logs = [np.log(values) for values in draws.values()]
    ess = min(float(effective_sample_size(values)) for values in logs)
    r_hat = max(float(split_gelman_rubin(values)) for values in logs)
    return {"seconds": seconds, "effective draws": ess, "R-hat": r_hat}


def posteriors() -> dict[str, Any]:
    """Compares `relbo.infer` with NUTS."""
    ways = [timed(by_nuts(method)) for method in ("vectorized", "sequential")]
    rows = {"infer": timed(by_infer), "NUTS": min(ways, key=lambda way: way["seconds"])}
    for name, row in rows.items():
        print(f"{name:28s}", {key: round(value, 3) for key, value in row.items()})
    ours, nuts = rows.values()
    ratios = {
        "NUTS's time over infer's": nuts["seconds"] / ours["seconds"],
        "the same, per effective draw": (nuts["seconds"] / nuts["effective draws"])
        / (ours["seconds"] / ours["effective draws"]),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    return {**rows, **ratios}


def main() -> None:
    args = argument_parser(__doc__).parse_args()
    begin = time.perf_counter()
    numpyro.enable_x64()
    train, ahead = windows()
    if args.quick:
        train, ahead = train[:2], ahead[:2]
    forecasts = {
        "relbo": structural(train, StructuralModel(PERIOD)),
        "relbo, level a random walk": structural(
            train, StructuralModel(PERIOD, forgetting=False)
        ),
        "statsmodels": [peer_forecast(series, PERIOD, NUM_AHEAD) for series in train],
    }
    results: dict[str, Any] = {}
    for name, each in forecasts.items():
        found = [scores(forecast, seen) for forecast, seen in zip(each, ahead, strict=True)]
        results[name] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        print(f"{name:28s}", {key: round(value, 3) for key, value in results[name].items()})
    results["windows"] = len(train)
    if not args.quick:
        results["posterior of the scales"] = posteriors()
    write_results("series", results, quick=args.quick, seconds=time.perf_counter() - begin)


if __name__ == "__main__":
    main()
