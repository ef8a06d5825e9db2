"""Compares `relbo.infer` with the samplers that people use, on models of 10 to 10,000 latents.

The models are in benchmarks/ladder.py, the samplers in benchmarks/samplers.py: NumPyro's NUTS,
BlackJAX's adjusted microcanonical sampler (MAMS) and LAPS, and nutpie for the same models in
PyMC (skipped where it is not installed). Two measures, in unconstrained coordinates:

- ESS/s: the smallest bulk effective sample size of a latent, divided by the seconds of the
  whole call, for the usual number of draws of each method;
- seconds until the largest error of a moment is below 0.01 and stays there. The error is the
  squared error of a mean or a second moment, divided by the variance of the quantity averaged.
  A method that needs more draws than usual continues, or is called again for four times as
  many. A method that returns all draws at once is charged the whole call.

Each is given with compilation (the first call of a process) and without it (the second). Every
run has its own process, in float64, without a persistent compilation cache; one runs at a
time. A call is stopped after `--timeout` seconds. Of the variants of a method, such as NUTS's
vectorized and parallel chains, the fastest counts. Each cell is kept in benchmarks/cells until
the code that it measures changes, so an interrupted comparison resumes.

    python benchmarks/rivals.py --make-references       # once: long NUTS runs
    python benchmarks/rivals.py --verify                # compares the models in PyMC
    python benchmarks/rivals.py --only irt --methods relbo NUTS --repeats 1
"""

import argparse
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from _common import argument_parser, write_results
from _moments import Moments, bulk_ess, draw_moments, moment_errors
from _rivals_table import (
    best_rivals,
    print_best_rivals,
    print_row,
    print_summary,
    row_of,
    summarise,
)
from ladder import MODELS, Data, Model, checksum
from samplers import METHODS as RIVALS
from samplers import PACKAGES, VARIANTS, Restart, Seconds, missing
from samplers_relbo import relbo_stream

HERE = Path(__file__).parent
REFERENCES = HERE / "references"
WANTED = 0.01
METHODS = {"relbo": ("infer",), **RIVALS}
STREAMS = {"infer": relbo_stream, **VARIANTS}
QUICK_MODELS = ("eight_schools", "logistic", "radon")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="MODEL")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of one call")
    parser.add_argument(
        "--clock",
        choices=Seconds._fields,
        default="wall",
        help="cpu counts the processor's seconds, for a machine that others use",
    )
    parser.add_argument("--cells-dir", type=Path, default=HERE / "cells")
    parser.add_argument("--fresh", action="store_true", help="ignore the cells kept")
    parser.add_argument("--make-references", action="store_true")
    parser.add_argument("--reference-draws", type=int, default=10_000, help="of each chain")
    parser.add_argument("--verify", action="store_true", help="compare with PyMC's densities")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, variant, seed, file = args.one
        measure(MODELS[name], variant, int(seed), Path(file), args.timeout, args.clock)
        return
    names = args.only or list(QUICK_MODELS if args.quick else MODELS)
    if args.verify:
        from ladder_verify import verify

        verify(names)
        return
    if args.make_references:
        make_references(names, args.reference_draws, args.fresh)
        return
    if args.quick:
        args.repeats, args.timeout = 1, min(args.timeout, 60)
    compare(args, names)


def compare(args: Any, names: list[str]) -> None:
    start, rows = time.perf_counter(), []
    print_row(None)
    for name in names:
        for method in args.methods:
            reason = missing(method, name)
            if reason:
                print(f"{name:22}{method:8}{reason}")
                continue
            runs = [run_variants(args, name, method, seed) for seed in range(args.repeats)]
            rows.append(row_of(name, method, runs))
            print_row(rows[-1])
    summary = summarise(rows, args.timeout)
    best = best_rivals(rows)
    print_best_rivals(best)
    print_summary(summary)
    seconds = time.perf_counter() - start
    results = {"rows": rows, "best_rivals": best, "summary": summary}
    if args.only or len(args.methods) < len(METHODS):
        print("(a run of some models or methods writes no file)")
    else:
        write_results("rivals", results, quick=args.quick, seconds=seconds)


def run_variants(args: Any, name: str, method: str, seed: int) -> list[dict[str, Any]]:
    """Returns the records of all variants of a method, from kept cells where there are any."""
    records = []
    for variant in METHODS[method]:
        label = f"{name}-{variant}-{seed}-{args.clock}{args.timeout}"
        label += f"-{code_digest(method, name)}"
        file = args.cells_dir / f"{label}.json"
        if args.fresh or args.quick or not file.exists():
            _in_a_process(args, name, variant, seed, file)
        records.append(json.loads(file.read_text()))
    return records


def _in_a_process(args: Any, name: str, variant: str, seed: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    environment["PYTENSOR_FLAGS"] = "numba__cache=False"
    if variant == "parallel":
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    command = [sys.executable, __file__, "--timeout", str(args.timeout), "--clock", args.clock]
    command += ["--one", name, variant, str(seed), str(partial)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    record = json.loads(partial.read_text()) if partial.exists() else {}
    record["variant"] = variant
    if done.returncode in (-signal.SIGALRM, -signal.SIGPROF):
        record["stopped"] = "time"
    elif done.returncode:
        record["stopped"] = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        print(f"{name}, {variant}: {record['stopped']}", file=sys.stderr)
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.rename(file)


def code_digest(method: str, name: str) -> str:
    """Identifies what a cell measures: the model, its reference, and the code of the method."""
    model = MODELS[name]
    digest = hashlib.sha256(checksum(model.data()).encode())
    digest.update(inspect.getsource(model.program).encode())
    files = [REFERENCES / f"{name}.json"]
    if method == "relbo":
        files += [HERE / "samplers_relbo.py"]
        files += sorted((HERE.parent / "src" / "relbo").rglob("*.py"))
    else:
        files += [HERE / "samplers.py"]
    for file in files:
        digest.update(file.read_bytes() if file.exists() else b"")
    if method == "nutpie":
        import ladder_pymc

        digest.update(inspect.getsource(ladder_pymc.MODELS[name]).encode())
    for package in PACKAGES.get(method, ("jax", "numpyro")):
        digest.update(version(package).encode())
    return digest.hexdigest()[:10]


def measure(
    model: Model, variant: str, seed: int, file: Path, timeout: int, clock: str
) -> None:
    """Calls a sampler twice and writes what was found after each block of draws.

    The timer ends the process even inside of compiled code; what was written remains.
    """
    import jax

    data = model.data()
    truth = truth_of(model, data)
    stream = STREAMS[variant](model, data)
    timer = signal.ITIMER_PROF if clock == "cpu" else signal.ITIMER_REAL
    record: dict[str, Any] = {}

    def write() -> None:
        scratch = file.with_suffix(".scratch")
        scratch.write_text(json.dumps(record))
        scratch.rename(file)

    for call, key in zip(("cold", "warm"), jax.random.split(jax.random.key(seed)), strict=True):
        signal.setitimer(timer, timeout)
        call_record: dict[str, Any] = {}
        for found in _measured(stream(key), truth, clock, cold=call == "cold"):
            call_record |= found
            record[call] = call_record
            write()
            # The first call is for the time of compilation only.
            if call == "cold" or truth is None or "reached" in call_record:
                break
        signal.setitimer(timer, 0)


def _measured(
    blocks: Iterable[Any], truth: Moments | None, clock: str, *, cold: bool
) -> Iterator[dict[str, Any]]:
    """Yields the measures after each block of draws; measuring does not count as time.

    Nor does compilation that every call repeats, except in the first call.
    """
    draws, elapsed, num_blocks = None, Seconds(), 0
    start = Seconds.now()
    for block in blocks:
        before, elapsed = elapsed, elapsed.plus(Seconds.now().minus(start))
        if block is not None:
            num_blocks += 1
            found: dict[str, Any] = {}
            if isinstance(block, Restart):
                draws, spent = block.draws, elapsed.minus(before)
                spent = spent if cold else spent.minus(block.compilation)
            else:
                draws = block if draws is None else np.concatenate([draws, block], 1)
                spent = elapsed
            if num_blocks == 1:
                ess = bulk_ess(draws)
                found["ess"] = float(np.min(np.where(np.isnan(ess), 0.0, ess)))
                found["seconds"] = getattr(spent, clock)
                found |= {"both_clocks": spent._asdict(), "num_draws": _number(draws)}
            if truth is not None:
                prefixes = 1 if isinstance(block, Restart) else 20 * num_blocks
                errors = moment_errors(draws, truth, prefixes)
                if num_blocks == 1:
                    found["error"] = float(errors[-1])
                if errors[-1] < WANTED:
                    below = np.flatnonzero(errors >= WANTED)
                    first = 0 if below.size == 0 else int(below[-1]) + 1
                    # The draws of a block arrive evenly; those before it took `before`.
                    share = (first + 1 - (prefixes - 20)) / 20
                    if isinstance(block, Restart):
                        found["reached"] = getattr(spent, clock)
                    else:
                        last = getattr(elapsed.minus(before), clock)
                        found["reached"] = getattr(before, clock) + max(share, 0.05) * last
            yield found
        start = Seconds.now()


def _number(draws: np.ndarray) -> int:
    return int(draws.shape[0] * draws.shape[1])


def truth_of(model: Model, data: Data) -> Moments | None:
    """Returns exact moments or those of the reference run, or `None` without one."""
    if model.truth is not None:
        return model.truth(data)
    file = REFERENCES / f"{model.name}.json"
    if not file.exists():
        print(f"{model.name}: no reference; see --make-references", file=sys.stderr)
        return None
    content = json.loads(file.read_text())
    if content["checksum"] != checksum(data):
        raise ValueError(f"{file.name} is for other data: run --make-references --fresh")
    return Moments(*(np.array(content[name]) for name in Moments._fields))


def make_references(names: list[str], num_draws: int, fresh: bool) -> None:
    """Writes the moments of long NUTS runs, in float64; existing files are kept."""
    import jax
    from numpyro.handlers import reparam
    from numpyro.infer import MCMC, NUTS
    from numpyro.infer.reparam import LocScaleReparam, Reparam

    jax.config.update("jax_enable_x64", True)
    for name in names:
        model, file = MODELS[name], REFERENCES / f"{name}.json"
        if model.truth is not None or (file.exists() and not fresh):
            continue
        start, data = time.perf_counter(), model.data()
        config: dict[str, Reparam] = {site: LocScaleReparam(0.0) for site in model.non_centred}
        mcmc = MCMC(
            NUTS(reparam(model.program, config=config), target_accept_prob=0.9),
            num_warmup=1000,
            num_samples=num_draws,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(1000), **data)
        draws = model.unconstrain(data, mcmc.get_samples(group_by_chain=True))
        moments = draw_moments(draws)
        centred = (draws - moments.mean) ** 2
        ess = [float(bulk_ess(draws).min()), float(bulk_ess(centred).min())]
        seconds = time.perf_counter() - start
        content = {
            "checksum": checksum(data),
            "made_by": f"NumPyro {version('numpyro')}, NUTS, 4 chains of 1000 + {num_draws}",
            "seconds": round(seconds, 1),
            "num_divergent": int(np.sum(mcmc.get_extra_fields()["diverging"])),
            "smallest_ess": {"values": round(ess[0]), "squares": round(ess[1])},
            **{field: _rounded(values) for field, values in moments._asdict().items()},
        }
        REFERENCES.mkdir(exist_ok=True)
        file.write_text(json.dumps(content) + "\n")
        print(f"{name:22}{seconds:8.0f} s, smallest ESS {ess[0]:.0f} and {ess[1]:.0f}")


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


if __name__ == "__main__":
    main()
