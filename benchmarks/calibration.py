"""Simulation-based calibration of `relbo.infer` on a hierarchy and on a mixture.

Each of 200 simulations draws the parameters from the prior and data given them, runs
`relbo.infer` in float32 with its defaults, and ranks the parameters among its thinned draws.
Uniform ranks are what right posteriors give; `relbo.evaluate.calibrate` says how it tests them.

- schools: the eight schools in their centred form, with their priors and standard errors;
- mixture: 40 observations of two normals with unknown locations and weight. The prior does not
  tell the components apart, so both labellings are in the posterior with equal mass. The
  locations are ranked as they are labelled, which needs both modes in the right shares, and
  sorted.

Every simulation is kept as a small file, and a second run continues an interrupted one; remove
the folder to start again. Of right posteriors, five runs in a hundred are rejected too:
`--seeds` adds runs with other simulations, to tell a false alarm from a wrong posterior.
`--plot` also writes a figure of the ranks for each run.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
from _common import argument_parser, write_results
from relbo.evaluate import Calibration, calibrate

SCHOOLS_SD = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
NUM_SIMULATIONS, NUM_QUICK = 200, 10
FILES_DIR = Path("relbo-out/calibration")


def schools(sd: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(sd)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sd), obs=y)


def mixture(y: Any) -> None:
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    location = numpyro.sample("location", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    shares = dist.Categorical(jnp.stack([weight, 1.0 - weight]))
    with numpyro.plate("data", len(y)):
        component = dist.Normal(location, 1.0)
        numpyro.sample("y", dist.MixtureSameFamily(shares, component), obs=y)


def sorted_too(values: dict[str, Any]) -> dict[str, Any]:
    """Adds quantities that do not depend on the labels."""
    location, weight = values["location"], values["weight"]
    is_first = location[0] < location[1]
    return {
        **values,
        "lower location": jnp.min(location),
        "upper location": jnp.max(location),
        "weight of the lower": jnp.where(is_first, weight, 1.0 - weight),
    }


class CalibratedModel(NamedTuple):
    """A model with its arguments, and what is ranked."""

    model: Callable[..., None]
    args: tuple
    quantities: Callable[[dict[str, Any]], dict[str, Any]] | None = None


MODELS = {
    "schools": CalibratedModel(schools, (SCHOOLS_SD, np.zeros(8))),
    "mixture": CalibratedModel(mixture, (np.zeros(40),), sorted_too),
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=MODELS, help="names of models")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="one run for each")
    parser.add_argument("--files", type=Path, default=FILES_DIR, help="folder of simulations")
    parser.add_argument("--plot", type=Path, help="folder for the figures")
    args = parser.parse_args()
    begin = time.perf_counter()
    results = {
        f"{name}, seed {seed}": run(name, seed, args)
        for name in args.only or MODELS
        for seed in args.seeds
    }
    quick = args.quick or bool(args.only)
    write_results("calibration", results, quick=quick, seconds=time.perf_counter() - begin)


def run(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    case = MODELS[name]
    late_programs = programs_compiled_late()
    begin, cpu = time.perf_counter(), time.process_time()

    def infer(key: Any, model: Any, model_args: tuple, kwargs: dict[str, Any]) -> Any:
        late_programs.next_run()
        return relbo.infer(key, model, model_args, kwargs, progress=False)

    found = calibrate(
        seed,
        case.model,
        infer,
        NUM_QUICK if args.quick else NUM_SIMULATIONS,
        args=case.args,
        quantities=case.quantities,
        directory=args.files / f"{name}-{seed}",
    )
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(f"\n{name}, seed {seed}: {seconds:.0f} s, {cpu:.0f} s of CPU")
    print(f"new runs: {late_programs.num_runs}")
    print(f"programs compiled after the first ten of them: {late_programs.counts}")
    print(found)
    record = {**describe(found), "compiled late": dict(late_programs.counts)}
    if found.is_trusted is not None and 1 < found.is_trusted.sum() < len(found.is_trusted):
        print("\ntrusted runs only:")
        print(found.trusted_only())
        record["trusted only"] = describe(found.trusted_only())
    if args.plot is not None:
        args.plot.mkdir(parents=True, exist_ok=True)
        found.plot().figure.savefig(args.plot / f"calibration-{name}-{seed}.png", dpi=120)
    return record


def describe(found: Calibration) -> dict[str, Any]:
    """Returns the result as plain values."""
    is_trusted = found.is_trusted
    return {
        "verdict": found.verdict,
        "calibrated": found.is_calibrated,
        "simulations": len(found.pits),
        "not trusted": 0 if is_trusted is None else int(np.sum(~is_trusted)),
        "failures": {str(index): error for index, error in found.failures.items()},
        "thinned draws": [int(found.num_draws.min()), int(found.num_draws.max())],
        "pvalues": found.pvalues,
        "deciles": {
            name: np.histogram(column, bins=10, range=(0, 1))[0].tolist()
            for name, column in zip(found.names, found.pits.T, strict=True)
        },
    }


class LatePrograms:
    """Counts the programs that are compiled after the first ten runs."""

    def __init__(self) -> None:
        self.num_runs = 0
        self.counts: dict[str, int] = {}

    def next_run(self) -> None:
        self.num_runs += 1

    def listen(self, event: str, *_: Any, fun_name: str | int = "", **__: Any) -> None:
        if self.num_runs > 10 and event.endswith("backend_compile_duration"):
            self.counts[str(fun_name)] = self.counts.get(str(fun_name), 0) + 1


def programs_compiled_late() -> LatePrograms:
    counter = LatePrograms()
    jax.monitoring.register_event_duration_secs_listener(counter.listen)
    return counter


if __name__ == "__main__":
    main()
