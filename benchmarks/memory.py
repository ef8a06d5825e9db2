"""Measures the memory and time of the gradient of a refined VAE objective as T grows.

    python benchmarks/memory.py [--quick]

The decoder is the paper's: 10 latents, two hidden layers of 200, relu, 784 Bernoulli logits.
Five draws for each of 128 images, full mode (through every step), with rematerialisation.
Weights and images are random: neither memory nor time depends on them.

Expected: the temporary memory at T = 64 is at most 1.5 times that at T = 8, and the time grows
at most in proportion to T. For comparison with the ratio of the times, it also prints the ratio
of the numbers of gradients (T, or T + 1 with the reverse kernel) and that of the operations.
"""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.extend.core import jaxprs_in_params
from jaxtyping import Array, Float, Key, Scalar

import relbo
from _common import argument_parser, write_results

NUM_LATENTS, NUM_HIDDEN, NUM_PIXELS = 10, 200, 784
NUM_DRAWS, BATCH_SIZE = 5, 128
STEP_SIZE = 1e-3
MEMORY_BAR = 1.5

COMBINATIONS = {
    "SGD + ParticleAccount": (relbo.SGD, relbo.ParticleAccount),
    "SGLD + ReverseKernelAccount": (relbo.SGLD, relbo.ReverseKernelAccount),
}


def decoder(key: Key[Array, ""]) -> eqx.nn.MLP:
    return eqx.nn.MLP(NUM_LATENTS, NUM_PIXELS, NUM_HIDDEN, 2, jax.nn.relu, key=key)


class Gradient(NamedTuple):
    """A compiled gradient for the decoder, the base and the step size, with its arguments."""

    compiled: Any
    arguments: tuple[Any, ...]
    flops: float
    """Operations in matrix products."""


def compile_gradient(combination: str, num_steps: int, *, remat: bool = True) -> Gradient:
    kernel, account = COMBINATIONS[combination]
    refinement = relbo.Refinement(
        kernel(STEP_SIZE),
        account(),
        num_steps=num_steps,
        anneal=False,
        space="unconstrained",
        execution=relbo.Execution(remat=remat),
    )
    keys = jr.split(jr.key(0), 3)
    images = jr.bernoulli(keys[0], 0.3, (BATCH_SIZE, NUM_PIXELS)).astype(jnp.float32)
    locs = 0.1 * jr.normal(keys[1], (BATCH_SIZE, NUM_LATENTS))
    bases = jax.vmap(lambda loc: relbo.DiagonalNormal(loc, 0.5 * jnp.ones(NUM_LATENTS)))(locs)
    params, static = eqx.partition((decoder(keys[2]), bases, refinement), eqx.is_inexact_array)

    def loss(params: Any, images: Float[Array, "batch pixels"], key: Key[Array, ""]) -> Scalar:
        network, bases, refinement = eqx.combine(params, static)

        def one(image: Float[Array, " pixels"], base: Any, key: Key[Array, ""]) -> Scalar:
            def logdensity_fn(z: Float[Array, " latents"]) -> Scalar:
                logits = network(z)
                prior = -0.5 * jnp.sum(jnp.square(z))
                return prior + jnp.sum(image * logits - jax.nn.softplus(logits))

            return relbo.refined_objective(
                key, refinement, base, logdensity_fn, num_draws=NUM_DRAWS
            ).value

        return -jnp.mean(jax.vmap(one)(images, bases, jr.split(key, BATCH_SIZE)))

    arguments = params, images, jr.key(1)
    traced = jax.jit(jax.grad(loss)).trace(*arguments)
    return Gradient(traced.lower().compile(), arguments, _matmul_flops(traced.jaxpr.jaxpr))


def _matmul_flops(jaxpr: Any) -> float:
    """Counts the operations in matrix products.

    XLA's own count takes the body of a loop once, whatever its length, and so does not depend
    on T.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[axis] for axis in contracted)
            total += 2.0 * inner * math.prod(equation.outvars[0].aval.shape)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(map(_matmul_flops, jaxprs_in_params(equation.params)))
    return total


def memory_records(num_steps: tuple[int, int]) -> list[dict[str, Any]]:
    """Measures memory and operations at a small and a large T, with and without remat."""
    records = []
    print(f"{'':28} {'remat':>5} {'T':>3} {'temporary MB':>12} {'matmul Gflop':>12}")
    for combination in COMBINATIONS:
        for remat in (True, False):
            for steps in num_steps:
                gradient = compile_gradient(combination, steps, remat=remat)
                memory = gradient.compiled.memory_analysis().temp_size_in_bytes
                record = {
                    "combination": combination,
                    "remat": remat,
                    "T": steps,
                    "temporary_bytes": int(memory),
                    "matmul_flops": gradient.flops,
                }
                records.append(record)
                print(
                    f"{combination:28} {remat!s:>5} {steps:3d} {memory / 1e6:12.1f} "
                    f"{gradient.flops / 1e9:12.1f}",
                    flush=True,
                )
    return records


def print_ratios(records: list[dict[str, Any]]) -> dict[str, float]:
    """Prints the memory at the large T over that at the small one, with remat."""
    ratios = {}
    for combination in COMBINATIONS:
        small, large = (
            r["temporary_bytes"]
            for r in records
            if r["combination"] == combination and r["remat"]
        )
        ratios[combination] = large / small
        verdict = "within" if ratios[combination] <= MEMORY_BAR else "ABOVE"
        print(
            f"{combination:28} ratio {large / small:.2f}, {verdict} the limit of {MEMORY_BAR}"
        )
    return ratios


def time_records(num_steps: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Measures the time of a gradient for each T, in turns so that load affects all."""
    records = []
    print(f"{'':28} {'T':>3} {'seconds':>8} {'ratio':>6} {'gradients':>9} {'flops':>6}")
    for combination in COMBINATIONS:
        gradients = {steps: compile_gradient(combination, steps) for steps in num_steps}
        seconds = {steps: [] for steps in num_steps}
        for _ in range(repeats):
            for steps, gradient in gradients.items():
                seconds[steps].append(_seconds(gradient))
        first = num_steps[0]
        for steps, gradient in gradients.items():
            # The fastest of the repeats is the least affected by other load.
            record = {
                "combination": combination,
                "T": steps,
                "seconds": min(seconds[steps]),
                "time_ratio": min(seconds[steps]) / min(seconds[first]),
                "gradients_ratio": _num_gradients(combination, steps)
                / _num_gradients(combination, first),
                "flops_ratio": gradient.flops / gradients[first].flops,
                "all_seconds": seconds[steps],
            }
            records.append(record)
            print(
                f"{combination:28} {steps:3d} {record['seconds']:8.3f} "
                f"{record['time_ratio']:6.2f} {record['gradients_ratio']:9.2f} "
                f"{record['flops_ratio']:6.2f}",
                flush=True,
            )
    return records


def _num_gradients(combination: str, num_steps: int) -> int:
    """Returns the number of gradients; the reverse kernel also needs the one at the end."""
    return num_steps + int(combination.endswith("ReverseKernelAccount"))


def _seconds(gradient: Gradient) -> float:
    started = time.perf_counter()
    jax.block_until_ready(gradient.compiled(*gradient.arguments))
    return time.perf_counter() - started


def main() -> None:
    parser = argument_parser(__doc__)
    args = parser.parse_args()
    started = time.perf_counter()
    memory = memory_records((2, 16) if args.quick else (8, 64))
    ratios = print_ratios(memory)
    times = time_records((2, 4) if args.quick else (4, 8, 16, 32), 1 if args.quick else 5)
    results = {
        "setting": {
            "latents": NUM_LATENTS,
            "hidden": [NUM_HIDDEN, NUM_HIDDEN],
            "pixels": NUM_PIXELS,
            "draws": NUM_DRAWS,
            "batch": BATCH_SIZE,
            "mode": "full",
        },
        "memory": memory,
        "memory_ratio_with_remat": ratios,
        "memory_bar": MEMORY_BAR,
        "time": times,
    }
    seconds = time.perf_counter() - started
    write_results("memory", results, quick=args.quick, seconds=seconds)


if __name__ == "__main__":
    main()
