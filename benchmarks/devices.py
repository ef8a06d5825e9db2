"""What each device does and what the devices tell one another, on 1, 2 and 4 of them.

    python benchmarks/devices.py [--quick] [--teraflops 20] [--gigabytes 25] [--latency 20]

The devices are virtual ones of this processor, so that nothing is timed: the numbers are read
off the compiled programs (`benchmarks/_hlo.py`). Four axes are spread: the rows of a minibatch
(the paper's autoencoder, five particles, 128 images in all), the particles of a loss, the
chains of `relbo.sample` and the test points of an evaluator. A turn is one of the outermost
loop: an iteration of a fit, a leapfrog of the chains, a batch of test points. Loops inside it
whose length is not known to the compiler, such as the temperatures of an annealed walk, count
once.

For the autoencoder it then says what efficiency to expect on 8, 64 and 512 devices, with 128
images on each (weak) or 8,192 in all (strong), and how many images a device needs for 80%. That
rests on the measured work and volume and on three assumptions: the speed of a device in matrix
products (teraflop/s), the bandwidth of its link (gigabyte/s) and the latency of a stage of a
collective (microseconds).
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.sharding import Mesh

import relbo
from _common import argument_parser, write_results
from _hlo import Cost, Program
from relbo import _ensemble, evaluate, training
from relbo._chains import Ensemble
from relbo._fitting.run import Run
from relbo._mesh import spread_over
from relbo._target import target_of
from relbo.evaluate import annealed
from relbo.models import autoencoder

NUM_DEVICES = (1, 2, 4)
BATCH_SIZE, NUM_IMAGES = 128, 2_560
FAR = (8, 64, 512)
STRONG_BATCH = 8_192
GOAL = 0.8
"""An efficiency worth having."""


class FoundError(Exception):
    """Carries a compiled program out of a run that need not go on."""


class Link(NamedTuple):
    """What is assumed of the machines."""

    teraflops: float
    gigabytes: float
    latency: float
    """Microseconds."""

    def seconds(self, cost: Cost, flops: float, num_devices: int) -> float:
        """Of a step: its work, and ring collectives that do not overlap with it."""
        if num_devices == 1:
            return flops / (1e12 * self.teraflops)
        volume = 2 * (num_devices - 1) / num_devices * cost.bytes
        stages = cost.collectives * math.ceil(math.log2(num_devices))
        moved = volume / (1e9 * self.gigabytes) + stages * 1e-6 * self.latency
        return flops / (1e12 * self.teraflops) + moved


def rows_of(num_steps: int, mode: str, batch_size: int) -> Callable[[Mesh], Any]:
    """A step of the paper's autoencoder."""
    images = np.random.default_rng(0).integers(0, 2, (NUM_IMAGES, 784), np.uint8)
    vae = autoencoder()
    guide = relbo.refine(
        vae.guide,
        vae.model,
        kernel=relbo.SGD(0.01),
        entropy=relbo.Gaussian(),
        num_steps=num_steps,
        mode=mode,  # type: ignore[arg-type]
        space="unconstrained",
        anneal=False,
    )
    return lambda mesh: compiled_fit(
        vae.model,
        (images,),
        {"num_images": NUM_IMAGES},
        guide=guide,
        batch_size=batch_size,
        num_particles=5,
        optimiser=optax.adam(1e-3),
        mesh=mesh,
    )


def logistic(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights).to_event(1), obs=y)


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(1_000, 50)).astype(np.float32), np.ones(1_000, np.float32)


def particles(mesh: Mesh) -> Any:
    """A step of a refined guide of a logistic regression, 16 particles."""
    guide = relbo.AutoRefined(logistic, num_steps=2)
    return compiled_fit(logistic, logistic_data(), {}, guide=guide, mesh=mesh)


def compiled_fit(model: Any, args: tuple, kwargs: dict, **options: Any) -> Any:
    """The compiled chunk of a fit."""

    class Look(Run):
        def until(self, num_iterations: int, deadline: float) -> Any:
            data = self.feed(0, 100)
            ends = np.int32(0), np.int32(100)
            raise FoundError(
                self.trainer.chunk.lower(self.carry, self._control(), *ends, data).compile()
            )

    training.Run = Look
    try:
        training.fit(
            jr.key(0), model, args, kwargs, warm_start=False, progress=False, **options
        )
    except FoundError as found:
        return found.args[0]
    finally:
        training.Run = Run


def chains(mesh: Mesh) -> Any:
    """A leapfrog of 64 chains of a logistic regression."""
    target, data = target_of(logistic, logistic_data(), {}, {})
    ensemble = Ensemble(np.random.default_rng(0), target, data, 64, spread=spread_over(mesh))
    return _first_program(_ensemble, "advance", lambda: ensemble.fit())


def test_points(mesh: Mesh) -> Any:
    """Annealed importance sampling of 64 images under the autoencoder's decoder."""
    vae = autoencoder()
    decode = vae.decoder
    model = evaluate.LatentVariableModel(
        lambda z, x: -jnp.sum(jnp.logaddexp(0.0, decode(z)) - x * decode(z))
    )
    run = lambda: evaluate.annealed_pointwise(
        jr.key(0), model, jnp.ones((64, 784)), relbo.StandardNormal(jnp.zeros(10)), mesh=mesh
    )
    return _first_program(annealed, "_pointwise", run)


def _first_program(module: Any, name: str, run: Callable[[], Any]) -> Any:
    """What a run would call first of a module's compiled functions, compiled."""
    original = getattr(module, name)

    def look(*args: Any) -> Any:
        raise FoundError(original.lower(*args).compile())

    setattr(module, name, look)
    try:
        run()
    except FoundError as found:
        return found.args[0]
    finally:
        setattr(module, name, original)


def measured(name: str, compile_on: Callable[[Mesh], Any]) -> list[dict[str, Any]]:
    """Work and volume of one turn on each number of devices."""
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
    """Efficiencies on many devices, the batch growing with them or not."""
    first, last = records[0], records[-1]
    cost = Cost(0.0, last["bytes"], last["collectives"])
    # What all devices repeat, and what they share: from the ends; the middle is the check.
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
        f"{'axis':30} {'devices':>7} {'Mflop':>12} {'share':>6} {'MB a turn':>12} "
        f"{'collectives':>11} {'MB once':>12}"
    )
    by_rows = {"rows, T = 0": rows_of(0, "full", BATCH_SIZE)}
    others: dict[str, Callable[[Mesh], Any]] = {}
    if not args.quick:
        by_rows["rows, T = 5, full"] = rows_of(5, "full", BATCH_SIZE)
        by_rows["rows, T = 5, fast"] = rows_of(5, "fast", BATCH_SIZE)
        others = {"particles": particles, "chains": chains, "test points": test_points}
    kept = {name: measured(name, compiled) for name, compiled in (by_rows | others).items()}
    print(f"\n{'axis':30} {'devices':>7} {'weak':>8} {'strong':>8} {'rows':>8}")
    far = [part for name in by_rows for part in extrapolated(name, kept[name], link)]
    results = {
        "measured": [record for records in kept.values() for record in records],
        "assumed": link._asdict(),
        "rows_a_device": BATCH_SIZE,
        "strong_batch": STRONG_BATCH,
        "goal": GOAL,
        "extrapolated": far,
    }
    write_results("devices", results, quick=args.quick, seconds=time.perf_counter() - begin)


if __name__ == "__main__":
    main()
