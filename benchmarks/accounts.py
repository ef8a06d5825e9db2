"""Compares the accounts on two densities whose evidence and spread are known.

Every guide starts from AutoNormal, takes T = 8 steps and is trained by the same number of
iterations. The script prints the objective minus log Z, which a bound keeps below zero, and the
standard deviation of the draws' first coordinate over the true one. The last part counts the
iterations of Adam in which a point estimate comes within 0.01 of the maximum, with and without
steps. It needs no data files.
"""

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import relbo
from _common import argument_parser, write_results

NUM_STEPS = 8
CORRELATION = 0.95


def correlated() -> None:
    covariance = jnp.array([[1.0, CORRELATION], [CORRELATION, 1.0]])
    numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(2), covariance))


def funnel() -> None:
    log_scale = numpyro.sample("z", dist.Normal(0.0, 1.35))
    numpyro.sample("y", dist.Normal(0.0, jnp.exp(log_scale)))


def valley() -> None:
    """The maximum, 0 at (1, 1), lies in a narrow and bent valley."""
    x, y = (
        numpyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), ()))
        for name in "xy"
    )
    numpyro.factor("density", -((1.0 - x) ** 2) - 10.0 * (y - x**2) ** 2)


TRUE_SD = {"correlated": 1.0, "funnel": 1.35}

ACCOUNTS: dict[str, Callable[[], relbo.Refinement]] = {
    "no steps": lambda: relbo.Refinement(num_steps=0),
    "SGD, ParticleAccount": lambda: refinement(relbo.SGD(0.05), relbo.ParticleAccount()),
    "SGLD, MonteCarloAccount": lambda: refinement(relbo.SGLD(0.05), relbo.MonteCarloAccount()),
    "SGD, GaussianAccount": lambda: refinement(relbo.SGD(0.05), relbo.GaussianAccount()),
    "SGD, ChangeOfVariablesAccount": lambda: refinement(
        relbo.SGD(0.05), relbo.ChangeOfVariablesAccount(monotone=True)
    ),
    "FokkerPlanckFlow, ParticleAccount": lambda: refinement(
        relbo.FokkerPlanckFlow(0.05), relbo.ParticleAccount()
    ),
    "Underdamped, ReverseKernelAccount": lambda: relbo.Refinement(num_steps=NUM_STEPS),
}


def refinement(
    kernel: relbo.AbstractKernel, account: relbo.AbstractAccount
) -> relbo.Refinement:
    return relbo.Refinement(kernel, account, num_steps=NUM_STEPS)


def compare(program: Callable[[], None], num_iterations: int) -> list[dict[str, Any]]:
    rows = []
    for name, make in ACCOUNTS.items():
        guide = relbo.AutoRefined(program, base=AutoNormal, refinement=make())
        trained = relbo.fit(
            0,
            program,
            guide=guide,
            num_iterations=num_iterations,
            starts=relbo.Starts(warm=False),
            progress=False,
        )
        draws = guide.sample_posterior(jr.key(1), trained.params, sample_shape=(4000,))
        first = np.asarray(draws["z"]).reshape(4000, -1)[:, 0]
        row = {
            "density": program.__name__,
            "account": name,
            "is_bound": guide.bound.valid,
            "objective": -trained.final_loss,
            "sd_ratio": float(first.std() / TRUE_SD[program.__name__]),
        }
        rows.append(row)
        print(
            f"{program.__name__:12} {name:36} objective {row['objective']:7.3f}  "
            f"sd / true sd {row['sd_ratio']:.2f}",
            flush=True,
        )
    return rows


def iterations_to_maximum(num_steps: int) -> int:
    """Returns the first of 5,000 iterations whose loss is within 0.01 of the least."""
    sampler = relbo.Refinement(relbo.SGD(0.01), relbo.ParticleAccount(), num_steps=num_steps)
    guide = relbo.AutoRefined(
        valley,
        base=AutoDelta,
        refinement=sampler,
        init_loc_fn=numpyro.infer.init_to_value(values={"x": -1.0, "y": 1.0}),
    )
    svi = SVI(valley, guide, optax.adam(0.02), Trace_ELBO())
    losses = svi.run(jr.key(0), 5_000, progress_bar=False).losses
    return int(np.argmax(np.asarray(losses) < 0.01))


def main() -> None:
    args = argument_parser(__doc__).parse_args()
    start = time.perf_counter()
    num_iterations = 300 if args.quick else 3000
    rows = [row for program in (correlated, funnel) for row in compare(program, num_iterations)]
    maximum = {str(number): iterations_to_maximum(number) for number in (0, 1, NUM_STEPS)}
    for number, iterations in maximum.items():
        print(f"point estimate, {number} steps: {iterations} iterations")
    results = {"accounts": rows, "iterations_to_maximum": maximum}
    write_results("accounts", results, quick=args.quick, seconds=time.perf_counter() - start)


if __name__ == "__main__":
    main()
