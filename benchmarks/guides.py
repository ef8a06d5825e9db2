"""Compares AutoRefined with NumPyro's guides on eight schools, and the cost of an update.

The first part trains every guide for the same number of iterations with the same optimiser, on
the non-centred and the centred model. It prints the ELBO from fresh draws, over several seeds,
and the exact log evidence. The second part prints the CPU time to trace and compile an update
of SVI and the time of one update, as ratios to AutoDAIS in the same run.

It needs no data files.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide

import relbo
from _common import argument_parser, write_results

LOG_EVIDENCE = -31.31135
EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def non_centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("effect", dist.Normal(mu + tau * t, ERRORS), obs=EFFECTS)


def centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, ERRORS), obs=EFFECTS)


GUIDES: dict[str, Callable[[Any], Any]] = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoDAIS K=5": lambda model: autoguide.AutoDAIS(model, K=5),
    "AutoRefined T=5": lambda model: relbo.AutoRefined(model, num_steps=5),
    "AutoDAIS K=8": lambda model: autoguide.AutoDAIS(model, K=8),
    "AutoRefined T=8": lambda model: relbo.AutoRefined(model),
    "AutoDAIS K=16": lambda model: autoguide.AutoDAIS(model, K=16),
    "AutoRefined T=16": lambda model: relbo.AutoRefined(model, num_steps=16),
    "AutoRefined T=16 on AutoMultivariateNormal": lambda model: relbo.AutoRefined(
        model, num_steps=16, base=autoguide.AutoMultivariateNormal
    ),
}


def optimiser(num_iterations: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(0.03, num_iterations)
    return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule))


def trained_elbo(model: Any, guide: Any, num_iterations: int, seed: int) -> float:
    svi = SVI(model, guide, optimiser(num_iterations), Trace_ELBO(num_particles=16))
    state = svi.init(jr.key(seed))

    def update(state: Any, _: Any) -> tuple[Any, Any]:
        state, loss = svi.stable_update(state)
        return state, loss

    state, _ = jax.jit(lambda state: jax.lax.scan(update, state, length=num_iterations))(state)
    loss = Trace_ELBO(num_particles=20_000)
    value = loss.loss(jr.key(1000 + seed), svi.get_params(state), model, guide)
    return -float(np.asarray(value))


def compare_elbos(num_iterations: int, num_seeds: int) -> list[dict[str, Any]]:
    rows = []
    print(f"ELBO after {num_iterations} iterations, {num_seeds} seeds; log Z = {LOG_EVIDENCE}")
    for program in (non_centred, centred):
        for name, make in GUIDES.items():
            values = [
                trained_elbo(program, make(program), num_iterations, seed)
                for seed in range(num_seeds)
            ]
            mean, error = np.mean(values), np.std(values, ddof=1) / num_seeds**0.5
            print(f"{program.__name__:12} {name:44} {mean:9.3f} +- {error:.3f}", flush=True)
            rows.append(
                {
                    "program": program.__name__,
                    "guide": name,
                    "elbo": float(mean),
                    "stderr": float(error),
                    "values": values,
                }
            )
    return rows


def cost_of_update(guide: Any) -> tuple[float, float]:
    """Returns the CPU seconds to trace and compile an update, and the best time of one."""
    svi = SVI(non_centred, guide, optax.adam(0.01), Trace_ELBO())
    state = svi.init(jr.key(0))
    start = time.process_time()
    update = jax.jit(svi.update).lower(state).compile()
    compiled = time.process_time() - start
    times = []
    for _ in range(200):
        start = time.perf_counter()
        jax.block_until_ready(update(state))
        times.append(time.perf_counter() - start)
    return compiled, min(times)


def compare_costs(repeats: int) -> dict[str, float]:
    guides = {
        "AutoDAIS": lambda: autoguide.AutoDAIS(non_centred, K=8),
        "AutoRefined": lambda: relbo.AutoRefined(non_centred),
    }
    # In turns, so that other load on the machine affects both.
    costs = {name: [] for name in guides}
    for _ in range(repeats):
        for name, make in guides.items():
            costs[name].append(cost_of_update(make()))
    ours, theirs = (np.min(costs[name], axis=0) for name in ("AutoRefined", "AutoDAIS"))
    compile_ratio, update_ratio = (float(ratio) for ratio in ours / theirs)
    print(f"trace and compile: AutoRefined T=8 / AutoDAIS K=8 = {compile_ratio:.2f} (bar 1.5)")
    print(f"one update:        AutoRefined T=8 / AutoDAIS K=8 = {update_ratio:.2f}")
    return {"compile_ratio": compile_ratio, "update_ratio": update_ratio}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--costs-only", action="store_true", help="only the second part; writes no file"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    costs = compare_costs(repeats=2 if args.quick else 5)
    if args.costs_only:
        return
    elbos = compare_elbos(*((500, 2) if args.quick else (5000, 3)))
    seconds = time.perf_counter() - start
    write_results("guides", {"costs": costs, "elbos": elbos}, quick=args.quick, seconds=seconds)


if __name__ == "__main__":
    main()
