"""A tiny experiment, and the command that runs it as one of several processes."""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
from relbo_paper import cli
from relbo_paper.harness.experiments import Experiment, Outcome

NUM = 64
DATA = np.random.default_rng(0).normal(size=NUM).astype(np.float32)


def model(rows):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", NUM, subsample_size=len(rows)):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=rows)


def guide(rows):
    loc = numpyro.param("loc", lambda key: jr.normal(key))
    scale = numpyro.param("scale", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


def trained(checkpoint_dir=None):
    return relbo.fit(
        jr.key(0),
        model,
        (DATA,),
        guide=guide,
        batch_size=16,
        num_iterations=100,
        checkpoint_dir=checkpoint_dir,
        progress=False,
    )


def run(directory, options):
    fitted = trained(directory / "checkpoints" / "fit")
    metrics = directory / "metrics.json"
    metrics.write_text(f"{fitted.losses[-1]}")
    print("all is well")
    return Outcome(metrics, ())


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_disable_most_optimizations", True)
    cli.EXPERIMENTS = {"tiny": Experiment("tiny_experiment", "", "")}
    sys.exit(cli.main(["run", "tiny", "--distributed", "--out", sys.argv[1]]))
