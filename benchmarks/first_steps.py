"""Measures how soon a refined guide with two steps is as good as a plain one.

The model is the logistic regression of NumPyro's tests (3,000 rows, 3 coefficients), trained as
there: Adam with learning rate 0.01 and one draw per update. It prints the loss, from 2,000 new
draws, after 500, 1,000, 2,000, 4,000 and 6,000 updates.

It needs no data files.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide

import relbo
from _common import argument_parser, write_results

NUM_UPDATES = (500, 1_000, 2_000, 4_000, 6_000)
FEATURES = jr.normal(jr.key(0), (3_000, 3))
LABELS = dist.Bernoulli(logits=FEATURES @ jnp.arange(1.0, 4.0)).sample(jr.key(1))


def model() -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", 3_000):
        numpyro.sample("label", dist.Bernoulli(logits=FEATURES @ slopes), obs=LABELS)


GUIDES: dict[str, Callable[[], Any]] = {
    "AutoNormal": lambda: autoguide.AutoNormal(model),
    "AutoMultivariateNormal": lambda: autoguide.AutoMultivariateNormal(model),
    "AutoRefined T=0": lambda: relbo.AutoRefined(model, num_steps=0),
    "AutoRefined T=2": lambda: relbo.AutoRefined(model, num_steps=2),
    "AutoRefined T=2 on AutoNormal": lambda: relbo.AutoRefined(
        model, base=autoguide.AutoNormal, num_steps=2
    ),
}


def losses_of(guide: Any, seed: int) -> list[float]:
    """Returns the loss after each number of updates."""
    svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO())
    state, losses = svi.init(jr.key(seed)), []

    @jax.jit
    def evaluate(params: dict[str, Any]) -> Any:
        return Trace_ELBO(num_particles=2_000).loss(jr.key(100), params, model, guide)

    @jax.jit
    def run(state: Any, number: Any) -> Any:
        return jax.lax.fori_loop(0, number, lambda _, state: svi.update(state)[0], state)

    for before, after in zip((0, *NUM_UPDATES), NUM_UPDATES, strict=False):
        state = run(state, after - before)
        losses.append(float(evaluate(svi.get_params(state))))
    return losses


def main() -> None:
    args = argument_parser(__doc__).parse_args()
    start, rows = time.perf_counter(), []
    print(f"loss after {NUM_UPDATES} updates")
    for name, make in GUIDES.items():
        for seed in (1,) if args.quick else (1, 2, 3):
            losses = losses_of(make(), seed)
            shown = " ".join(f"{loss:8.2f}" for loss in losses)
            print(f"{name:32} seed {seed}: {shown}", flush=True)
            rows.append({"guide": name, "seed": seed, "updates": NUM_UPDATES, "losses": losses})
    seconds = time.perf_counter() - start
    write_results("first_steps", rows, quick=args.quick, seconds=seconds)


if __name__ == "__main__":
    main()
