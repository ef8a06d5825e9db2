"""Measures the ELBO of annealed underdamped steps on three densities with known evidence.

    python benchmarks/evidence.py --data-dir DIR [--quick] [--ablations]

One recipe for every density and every K: a diagonal normal base, K leapfrogs with partial
refreshment along a learned path of temperatures, the reverse-kernel account, everything learned
together by Adam in one compiled loop. K leapfrogs evaluate the gradient at K + 1 points; the
column *K gradients* takes one leapfrog fewer.

It reports the mean over seeds of the ELBO on fresh draws, with the standard error across seeds
(which includes the Monte Carlo error of each seed). No seed is left out.
"""

import argparse
import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Key, Scalar

import relbo
from _common import add_data_dir, argument_parser, data_dir, write_results
from densities import DENSITIES, Density


class Published(NamedTuple):
    """Figures of other methods, published or measured elsewhere; `None` if unknown."""

    mean_field: float | None
    ula: float | None
    uha: float | None
    cmcd: float | None


PUBLISHED = {
    ("ionosphere", 8): Published(-123.52, -116.70, -115.89, -112.79),
    ("ionosphere", 32): Published(-123.52, -114.54, -113.42, -112.20),
    ("seeds", 8): Published(-76.80, -75.58, -75.13, -74.53),
    ("seeds", 32): Published(-76.80, -74.91, -74.36, -73.96),
    ("brownian", 8): Published(None, -2.03, -1.63, -0.62),
    ("brownian", 32): Published(None, -1.08, -0.46, 0.28),
}


CHUNK = 1_000
"""Fresh draws evaluated side by side."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options that are not learned."""

    space: Literal["unconstrained", "whitened"] = "whitened"
    step_size_shape: Literal["one", "step", "coordinate", "both"] = "both"
    damping_shape: Literal["one", "step", "both"] = "step"
    step_size: float = 0.3
    max_step_size: float | None = 1.0
    """In units of the base's scale. Without it a step size can grow until leapfrogs are
    unstable; then every path diverges, and there is no gradient to reduce the step size."""
    damping: float = 0.9
    base_scale: float = 0.1
    anneal: bool = True
    learning_rate: float = 0.03
    max_norm: float | None = 10.0
    """The norm at which gradients are clipped. Nearly every parameter is a logarithm, so the
    norm is in nats, and one value works for every density."""
    num_draws: int = 16
    num_iterations: int = 5_000


class Fit(NamedTuple):
    """The results, one row per seed."""

    trace: Float[Array, "seeds iterations"]
    """The training estimates of the ELBO."""
    log_weights: Float[Array, "seeds draws"]
    """The log weights of fresh draws, whose mean is the ELBO."""


def model(
    density: Density, num_steps: int, recipe: Recipe
) -> tuple[relbo.DiagonalNormal, relbo.Refinement]:
    """Returns the base and the refinement before training."""
    base = relbo.DiagonalNormal(jnp.zeros(density.dimension), recipe.base_scale)
    kernel = relbo.Underdamped(
        _shaped(recipe.step_size, recipe.step_size_shape, num_steps, density.dimension),
        _shaped(recipe.damping, recipe.damping_shape, num_steps, density.dimension),
    )
    refinement = relbo.Refinement(
        kernel,
        num_steps=num_steps,
        anneal=recipe.anneal,
        space=recipe.space,
        max_step_size=recipe.max_step_size,
    )
    return base, refinement


def _shaped(value: float, shape: str, num_steps: int, dimension: int) -> Any:
    return {
        "one": value,
        "step": relbo.PerStep(jnp.full(num_steps, value)),
        "coordinate": jnp.full(dimension, value),
        "both": relbo.PerStep(jnp.full((num_steps, dimension), value)),
    }[shape]


def fit(
    density: Density, num_steps: int, recipe: Recipe, num_seeds: int, num_draws: int
) -> Fit:
    """Trains from all seeds at once, then evaluates on fresh draws."""
    params, static = eqx.partition(model(density, num_steps, recipe), eqx.is_inexact_array)
    optimiser = _optimiser(recipe)

    def objective(params: Any, key: Key[Array, ""], num_draws: int) -> relbo.Objective:
        base, refinement = eqx.combine(params, static)
        return relbo.refined_objective(
            key, refinement, base, density.logdensity_fn, num_draws=num_draws
        )

    def loss(params: Any, key: Key[Array, ""]) -> Scalar:
        return -objective(params, key, recipe.num_draws).value

    def step(carry: Any, key: Key[Array, ""]) -> tuple[Any, Scalar]:
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, key)
        updates, state = optimiser.update(gradient, state, params)
        return (eqx.apply_updates(params, updates), state), -value

    def train(key: Key[Array, ""]) -> tuple[Any, Array]:
        keys = jr.split(key, recipe.num_iterations)
        (trained, _), trace = jax.lax.scan(step, (params, optimiser.init(params)), keys)
        return trained, trace

    def evaluate(trained: Any, key: Key[Array, ""]) -> Array:
        def draw(key: Key[Array, ""]) -> Array:
            return objective(trained, key, CHUNK).log_weights

        return jnp.ravel(jax.lax.map(draw, jr.split(key, num_draws // CHUNK)))

    def train_and_evaluate(key: Key[Array, ""]) -> Fit:
        train_key, evaluate_key = jr.split(key)
        trained, trace = train(train_key)
        return Fit(trace, evaluate(trained, evaluate_key))

    keys = jax.vmap(jr.key)(jnp.arange(num_seeds))
    return jax.block_until_ready(jax.jit(jax.vmap(train_and_evaluate))(keys))


def _optimiser(recipe: Recipe) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(recipe.learning_rate, recipe.num_iterations)
    adam = optax.adam(schedule)
    if recipe.max_norm is not None:
        adam = optax.chain(optax.clip_by_global_norm(recipe.max_norm), adam)
    # If a path diverges there is no gradient: the iteration counts and changes nothing.
    return optax.apply_if_finite(adam, max_consecutive_errors=recipe.num_iterations)


def measure(
    density: Density, num_steps: int, recipe: Recipe, num_seeds: int, num_draws: int
) -> dict[str, Any]:
    """Trains, evaluates and returns a record for the table and the file."""
    started = time.perf_counter()
    done = fit(density, num_steps, recipe, num_seeds, num_draws)
    log_weights = np.asarray(done.log_weights, np.float64)
    elbos = log_weights.mean(axis=1)
    within = log_weights.std(axis=1, ddof=1) / np.sqrt(log_weights.shape[1])
    return {
        "density": density.name,
        "leapfrogs": num_steps,
        "gradients": num_steps + 1,
        "elbo": float(elbos.mean()),
        "stderr": float(elbos.std(ddof=1) / np.sqrt(num_seeds)) if num_seeds > 1 else None,
        "elbo_by_seed": elbos.tolist(),
        "monte_carlo_stderr_by_seed": within.tolist(),
        # E[weight] = Z for any parameters: values far from Z on all seeds indicate an error.
        "log_mean_weight_by_seed": relbo.log_mean_exp(done.log_weights).tolist(),
        # Iterations and evaluation draws in which a path diverged.
        "failed_iterations_by_seed": np.sum(~np.isfinite(done.trace), axis=1).tolist(),
        "failed_draws": int(np.sum(~np.isfinite(log_weights))),
        "log_evidence": density.log_evidence,
        "draws": num_draws,
        "seeds": num_seeds,
        "seconds": round(time.perf_counter() - started, 1),
        "recipe": dataclasses.asdict(recipe),
    }


def ablations(recipe: Recipe) -> dict[str, Recipe]:
    """Returns the recipe and variants that differ from it in one option."""
    change = functools.partial(dataclasses.replace, recipe)
    return {
        "the recipe": recipe,
        "unconstrained space": change(space="unconstrained"),
        "no cap on the step size": change(max_step_size=None),
        "no annealing": change(anneal=False),
        "one step size": change(step_size_shape="one"),
        "one step size per step": change(step_size_shape="step"),
        "one step size per coordinate": change(step_size_shape="coordinate"),
        "one damping": change(damping_shape="one"),
        "a damping per step and coordinate": change(damping_shape="both"),
        "step size x 3": change(step_size=3 * recipe.step_size),
        "step size / 3": change(step_size=recipe.step_size / 3),
        "damping 0.6": change(damping=0.6),
        "base scale 1": change(base_scale=1.0),
        "learning rate / 3": change(learning_rate=recipe.learning_rate / 3),
        "no clipping": change(max_norm=None),
        "learning rate x 2": change(learning_rate=2 * recipe.learning_rate),
        "a quarter of the draws": change(num_draws=recipe.num_draws // 4),
    }


def _number(value: float | None, width: int = 8) -> str:
    return f"{'':>{width}}" if value is None else f"{value:{width}.2f}"


def _estimate(record: dict[str, Any]) -> str:
    error = record["stderr"]
    return f"{record['elbo']:8.2f} +- " + ("?   " if error is None else f"{error:.3f}")


def print_table(records: list[dict[str, Any]]) -> None:
    """Prints the published ELBOs, ours, and the log evidence."""
    print(
        f"{'density':11} {'K':>3} {'mean-fld':>8} {'ULA':>8} {'UHA':>8} {'CMCD-UHA':>8} "
        f"{'relbo, K leapfrogs':>18} {'relbo, K gradients':>18} {'log Z':>8}  against UHA, CMCD"
    )
    for (name, k), row in PUBLISHED.items():
        ours = {r["leapfrogs"]: r for r in records if r["density"] == name and r["K"] == k}
        if not ours:
            continue
        verdict = ", ".join(_verdict(ours[k], other) for other in (row.uha, row.cmcd))
        print(
            f"{name:11} {k:3d} {' '.join(map(_number, row))} {_estimate(ours[k]):>18} "
            f"{_estimate(ours[k - 1]):>18} {_number(ours[k]['log_evidence'])}  {verdict}"
        )


def _verdict(record: dict[str, Any], other: float | None) -> str:
    if other is None:
        return "-"
    margin = record["elbo"] - other
    return ("above" if margin > 0 else "below") + f" by {abs(margin):.2f}"


def run_main(args: argparse.Namespace, folder: Path, recipe: Recipe) -> None:
    started = time.perf_counter()
    records = []
    for name, k in PUBLISHED:
        if name not in args.densities or k not in args.steps:
            continue
        for num_steps in (k, k - 1):
            density = DENSITIES[name](folder)
            record = measure(density, num_steps, recipe, args.seeds, args.draws)
            records.append({"K": k, **record, "published": PUBLISHED[name, k]._asdict()})
            print(
                f"  {name} {num_steps} leapfrogs: {_estimate(record)}, by seed "
                f"{np.round(record['elbo_by_seed'], 2)}, {record['seconds']} s",
                flush=True,
            )
    print_table(records)
    seconds = time.perf_counter() - started
    write_results("evidence", records, quick=args.quick, seconds=seconds)


def run_ablations(args: argparse.Namespace, folder: Path, recipe: Recipe) -> None:
    started = time.perf_counter()
    records = []
    for name in args.densities:
        density = DENSITIES[name](folder)
        for k in args.steps:
            print(f"{name}, {k} leapfrogs", flush=True)
            for label, variant in ablations(recipe).items():
                record = measure(density, k, variant, args.seeds, args.draws)
                records.append({"K": k, "variant": label, **record})
                print(f"  {label:32} {_estimate(record)}", flush=True)
    seconds = time.perf_counter() - started
    write_results("evidence-ablations", records, quick=args.quick, seconds=seconds)


def main() -> None:
    parser = argument_parser(__doc__)
    add_data_dir(parser)
    parser.add_argument("--ablations", action="store_true", help="change one option at a time")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    parser.add_argument(
        "--draws", type=int, default=20_000, help="number of fresh draws (default 20000)"
    )
    parser.add_argument(
        "--densities", nargs="+", choices=list(DENSITIES), default=list(DENSITIES)
    )
    parser.add_argument("--steps", nargs="+", type=int, default=[8, 32], choices=[8, 32])
    args = parser.parse_args()
    folder = data_dir(args, parser)
    recipe = Recipe()
    if args.quick:
        args.seeds, args.draws, args.steps = 2, 2_000, [8]
        recipe = dataclasses.replace(recipe, num_iterations=500)
    (run_ablations if args.ablations else run_main)(args, folder, recipe)


if __name__ == "__main__":
    main()
