"""Measures the work of each device and the traffic between devices, on 1, 2 and 4 of them.

    python benchmarks/devices.py [--quick] [--teraflops 20] [--gigabytes 25] [--latency 20]

The devices are virtual devices of this processor, so nothing is timed: the numbers come from
the compiled programs (`benchmarks/_hlo.py`). Four axes are spread: the rows of a minibatch
(the paper's autoencoder, five draws, a minibatch of 128 images), the draws of a loss, the
chains of `relbo.sample` and the test points of an evaluator. A turn is one pass of the
outermost loop: an iteration of a fit, a leapfrog step of the chains, a batch of test points.
Inner loops of unknown length, such as the temperatures of annealed importance sampling, count
once.

For the autoencoder it then extrapolates the efficiency on 8, 64 and 512 devices, with 128
images on each (weak) or 8,192 in total (strong), and the number of images per device for 80%.
This rests on the measured work and traffic and on three assumptions: the speed of a device in
matrix products (teraflop/s), the bandwidth of its link (gigabyte/s) and the latency of a stage
of a collective (microseconds).
"""

import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.sharding import Mesh
from numpyro.infer import Trace_ELBO

import relbo
from _common import argument_parser, write_results
from _hlo import Cost, Program
from relbo import evaluate
from relbo._devices import spread_over
from relbo.evaluate import batches
from relbo.problem import read
from relbo.sampling import ensemble
from relbo.training import _fit as fitting
from relbo.training.loop import TrainingLoop
from relbo_paper.models import autoencoder

NUM_DEVICES = (1, 2, 4)
BATCH_SIZE, NUM_IMAGES = 128, 2_560
FAR = (8, 64, 512)
STRONG_BATCH = 8_192
GOAL = 0.8
"""The efficiency that is aimed at."""


class FoundError(Exception):
    """Carries a compiled program out of a run that is stopped."""


class Link(NamedTuple):
    """Assumptions about the machines."""

    teraflops: float
    gigabytes: float
    latency: float
    """Microseconds."""

    def seconds(self, cost: Cost, flops: float, num_devices: int) -> float:
        """Computes the time of a step: its work, then ring collectives."""
        if num_devices == 1:
            return flops / (1e12 * self.teraflops)
        volume = 2 * (num_devices - 1) / num_devices * cost.bytes
        stages = cost.collectives * math.ceil(math.log2(num_devices))
        moved = volume / (1e9 * self.gigabytes) + stages * 1e-6 * self.latency
        return flops / (1e12 * self.teraflops) + moved


def rows_of(
    num_steps: int, mode: Literal["full", "fast"], batch_size: int
) -> Callable[[Mesh], Any]:
    """Compiles a step of the paper's autoencoder."""
    images = np.random.default_rng(0).integers(0, 2, (NUM_IMAGES, 784), np.uint8)
    vae = autoencoder()
    guide = relbo.refine(
        vae.guide,
        vae.model,
        refinement=relbo.Refinement(
            relbo.SGD(0.01),
            relbo.GaussianAccount(),
            num_steps=num_steps,
            mode=mode,
            anneal=False,
            space="unconstrained",
        ),
    )
    return lambda mesh: compiled_fit(
        vae.model,
        (images,),
        {"num_images": NUM_IMAGES},
        guide=guide,
        batch_size=batch_size,
        loss=Trace_ELBO(5),
        optimiser=optax.adam(1e-3),
        mesh=mesh,
    )


def logistic(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights).to_event(1), obs=y)


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(1_000, 50)).astype(np.float32), np.ones(1_000, np.float32)


def draws(mesh: Mesh) -> Any:
    """Compiles a step of a refined guide of a logistic regression, 16 draws."""
    guide = relbo.AutoRefined(logistic, num_steps=2)
    return compiled_fit(logistic, logistic_data(), {}, guide=guide, mesh=mesh)


def compiled_fit(model: Any, args: tuple, kwargs: dict, **options: Any) -> Any:
    """Returns the compiled chunk of a fit."""

    class CompileOnly(TrainingLoop):
        def run(self, num_iterations: int, deadline: float) -> Any:
            raise FoundError(self.program.chunk.lower(*self.inputs(num_iterations)).compile())

    fitting.TrainingLoop = CompileOnly
    try:
        relbo.fit(
            0,
            model,
            args,
            kwargs,
            starts=relbo.Starts(warm=False),
            progress=False,
            **options,
        )
    except FoundError as found:
        return found.args[0]
    finally:
        fitting.TrainingLoop = TrainingLoop


def chains(mesh: Mesh) -> Any:
    """Compiles a leapfrog step of 64 chains of a logistic regression."""
    problem = read(logistic, logistic_data())
    chains = ensemble.Ensemble(np.random.default_rng(0), problem, 64, spread=spread_over(mesh))
    return _first_program(ensemble, "advance", lambda: chains.fit())


def test_points(mesh: Mesh) -> Any:
    """Compiles annealed importance sampling of 64 images under the decoder."""
    vae = autoencoder()
    decode = vae.decoder
    model = evaluate.LatentVariableModel(
        lambda z, x: -jnp.sum(jnp.logaddexp(0.0, decode(z)) - x * decode(z))
    )
    run = lambda: evaluate.annealed_pointwise(
        jr.key(0), model, jnp.ones((64, 784)), relbo.StandardNormal(jnp.zeros(10)), mesh=mesh
    )
    return _first_program(batches, "_map_with_keys", run)


def _first_program(module: Any, name: str, run: Callable[[], Any]) -> Any:
    """Compiles the first call of a module's compiled function."""
    original = getattr(module, name)

    def compile_only(*args: Any, **options: Any) -> Any:
        raise FoundError(original.lower(*args, **options).compile())

    setattr(module, name, compile_only)
    try:
        run()
    except FoundError as found:
        return found.args[0]
    finally:
        setattr(module, name, original)


def measured(name: str, compile_on: Callable[[Mesh], Any]) -> list[dict[str, Any]]:
    """Measures the work and traffic of one turn on each number of devices."""
    records = []
    for number in NUM_DEVICES:
        program = compile_on(Mesh(np.array(jax.devices()[:number]), ("devices",)))
        program = getattr(program, "compiled", program)
        turn, outside = Program(program.as_text()).turn()
        record = {
            "axis": name,
            "devices": number,
            "flops": turn.flops,
            "bytes": turn.bytes,
            "collectives": turn.collectives,
            "bytes_once": outside.bytes,
            "cost_analysis_flops": program.cost_analysis().get("flops"),
        }
        records.append(record)
        share = turn.flops / records[0]["flops"]
        print(
            f"{name:30} {number:7d} {turn.flops / 1e6:12.2f} {share:6.1%} "
            f"{turn.bytes / 1e6:12.4f} {turn.collectives:11.0f} {outside.bytes / 1e6:12.4f}",
            flush=True,
        )
    return records


def extrapolated(name: str, records: list[dict[str, Any]], link: Link) -> list[dict[str, Any]]:
    """Computes efficiencies on many devices, with a growing or a fixed batch."""
    first, last = records[0], records[-1]
    cost = Cost(0.0, last["bytes"], last["collectives"])
    # The repeated and the shared work follow from the first and the last record.
    number = last["devices"]
    shared = (first["flops"] - last["flops"]) * number / (number - 1)
    repeated = max(first["flops"] - shared, 0.0)
    found = []
    for devices in FAR:
        alone = link.seconds(cost, repeated + shared, 1)
        weak = alone / link.seconds(cost, repeated + shared, devices)
        large = STRONG_BATCH / BATCH_SIZE * shared
        strong = link.seconds(cost, repeated + large, 1) / (
            devices * link.seconds(cost, repeated + large / devices, devices)
        )
        moved = link.seconds(cost, 0.0, devices)
        enough = GOAL / (1 - GOAL) * moved / alone * BATCH_SIZE
        found.append(
            {
                "axis": name,
                "devices": devices,
                "weak": weak,
                "strong": strong,
                "rows_for_goal": math.ceil(enough),
            }
        )
        print(f"{name:30} {devices:7d} {weak:8.0%} {strong:8.0%} {math.ceil(enough):8d}")
    return found


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--teraflops", type=float, default=20.0)
    parser.add_argument("--gigabytes", type=float, default=25.0)
    parser.add_argument("--latency", type=float, default=20.0)
    args = parser.parse_args()
    link = Link(args.teraflops, args.gigabytes, args.latency)
    begin = time.perf_counter()
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES[-1])
    print(
        f"{'axis':30} {'devices':>7} {'Mflop':>12} {'share':>6} {'MB per turn':>12} "
        f"{'collectives':>11} {'MB once':>12}"
    )
    by_rows = {"rows, T = 0": rows_of(0, "full", BATCH_SIZE)}
    others: dict[str, Callable[[Mesh], Any]] = {}
    if not args.quick:
        by_rows["rows, T = 5, full"] = rows_of(5, "full", BATCH_SIZE)
        by_rows["rows, T = 5, fast"] = rows_of(5, "fast", BATCH_SIZE)
        others = {"particles": draws, "chains": chains, "test points": test_points}
    kept = {name: measured(name, compiled) for name, compiled in (by_rows | others).items()}
    print(f"\n{'axis':30} {'devices':>7} {'weak':>8} {'strong':>8} {'rows':>8}")
    far = [part for name in by_rows for part in extrapolated(name, kept[name], link)]
    results = {
        "measured": [record for records in kept.values() for record in records],
        "assumed": link._asdict(),
        "rows_per_device": BATCH_SIZE,
        "strong_batch": STRONG_BATCH,
        "goal": GOAL,
        "extrapolated": far,
    }
    write_results("devices", results, quick=args.quick, seconds=time.perf_counter() - begin)


if __name__ == "__main__":
    main()
