"""Small runs on which one device, four devices and two processes must agree.

As a script, `device_cases.py OUT CASE...` writes the results of cases. It runs alone or, with
the environment variables of `relbo.distributed`, as one of several processes.
"""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import Trace_ELBO

import relbo
from relbo import Rows, evaluate

NUM = 64
DATA = np.random.default_rng(0).normal(size=(NUM, 5)).astype(np.float32)
X = np.linspace(-1.0, 1.0, 12, dtype=np.float32)
Y = np.float32(0.4) + np.float32(1.3) * X


def factors(rows):
    """One latent vector per row."""
    weights = numpyro.param("weights", lambda key: jr.normal(key, (3, 5)))
    with numpyro.plate("rows", NUM, subsample_size=len(rows)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("x", dist.Normal(z @ weights, 0.5).to_event(1), obs=rows)


def encoder(rows):
    weights = numpyro.param("encoder", lambda key: 0.1 * jr.normal(key, (5, 3)))
    scale = numpyro.param("scale", jnp.ones(3), constraint=dist.constraints.positive)
    with numpyro.plate("rows", NUM, subsample_size=len(rows)):
        numpyro.sample("z", dist.Normal(rows @ weights, scale[None]).to_event(1))


def line(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5).to_event(1), obs=y)


def line_guide(x, y):
    loc = numpyro.param("loc", jnp.zeros(2))
    scale = numpyro.param("scale", jnp.ones(2), constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def fit_rows(mesh=None, data=DATA, num_iterations=200, **options):
    options = {"batch_size": 16, "loss": Trace_ELBO(2), "progress": False, **options}
    return relbo.fit(
        jr.key(0),
        factors,
        (data,),
        guide=encoder,
        optimiser=optax.adam(0.02),
        num_iterations=num_iterations,
        stopping=relbo.Stopping(early=False),
        mesh=mesh,
        **options,
    )


def arrays_of(fitted):
    return {"losses": fitted.seed_losses, **fitted.seed_params}


def fit_line(guide, loss, mesh):
    fitted = relbo.fit(
        jr.key(0),
        line,
        (X, Y),
        guide=guide,
        num_iterations=100,
        loss=loss,
        starts=relbo.Starts(warm=False),
        progress=False,
        mesh=mesh,
    )
    return arrays_of(fitted)


def draws(mesh):
    return fit_line(line_guide, Trace_ELBO(8), mesh)


def weighted(mesh):
    loss = relbo.PointwiseELBO(3)
    return arrays_of(fit_rows(mesh, loss=loss, num_iterations=100))


def interacting(mesh):
    guide = relbo.AutoRefined(
        line,
        refinement=relbo.Refinement(relbo.SVGD(0.1), relbo.ParticleAccount(), num_steps=1),
    )
    return fit_line(guide, relbo.RefinedELBO(8), mesh)


def chains(mesh):
    posterior = relbo.sample(
        jr.key(0), line, (X, Y), num_draws=160, num_chains=16, num_evidence_draws=32, mesh=mesh,
        progress=False,
    )  # fmt: skip
    return {"w": posterior.draws["w"], "evidence": posterior.log_evidence}


def evidence(mesh):
    found = evaluate.log_evidence(
        jr.key(0), line, (X, Y), settings=evaluate.AnnealingSettings(4, 8), mesh=mesh
    )
    return {"value": found.value, "stderr": found.stderr}


def test_points(mesh):
    """More points than a batch has, and a batch size that four does not divide."""
    model = evaluate.LatentVariableModel(lambda z, x: -jnp.sum((x - z) ** 2))
    points, base = DATA[:10, :2], relbo.StandardNormal(jnp.zeros(2))
    start = jr.normal(jr.key(1), (10, 20, 2))
    annealed = evaluate.annealed_pointwise(
        jr.key(0), model, points, base, settings=evaluate.AnnealingSettings(4, 4),
        batch_size=6, mesh=mesh,
    )  # fmt: skip
    fitted = evaluate.fitted_importance(
        jr.key(0), model, points, start, base, num_draws=30, batch_size=6, pareto=False,
        mesh=mesh,
    )  # fmt: skip
    return {"annealed": annealed.values, "fitted": fitted.values}


test_points.__test__ = False  # a case, not a test


def weights(mesh):
    base = relbo.DiagonalNormal(jnp.zeros(2))

    def source(key):
        z, log_q = base.sample(key)
        return z, -jnp.sum(z**2) - log_q

    return {
        "value": evaluate.importance_weighting(jr.key(0), source, num_draws=30, mesh=mesh)[0]
    }


CASES = {
    "minibatches": lambda mesh: arrays_of(fit_rows(mesh)),
    "minibatches that do not divide": lambda mesh: arrays_of(fit_rows(mesh, batch_size=6)),
    "rows on disk": lambda mesh: arrays_of(fit_rows(mesh, Rows(DATA))),
    "seeds, rows on disk": lambda mesh: arrays_of(
        fit_rows(mesh, Rows(DATA), num_iterations=100, starts=relbo.Starts(num_seeds=2))
    ),
    "draws": draws,
    "weighted": weighted,
    "interacting": interacting,
    "chains": chains,
    "evidence": evidence,
    "test points": test_points,
    "weights": weights,
}


class CountingRows(Rows):
    """Rows that count how many are read."""

    def __init__(self, source):
        super().__init__(source)
        self.sizes = []

    def fetch(self, rows):
        self.sizes.append(np.size(rows))
        return super().fetch(rows)


def own_rows():
    rows = CountingRows(DATA)
    # All processes read the first minibatch; then each reads its part of a chunk.
    return {**arrays_of(fit_rows(data=rows)), "size": rows.sizes[1]}


def strict() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")


def main(out: Path, names: list[str]) -> None:
    strict()
    if "JAX_NUM_PROCESSES" in os.environ:
        relbo.distributed.initialize(patience=10)
    for name in names:
        if name.startswith("resume"):
            _, number, directory = name.split(" ")
            fitted = fit_rows(
                num_iterations=int(number), checkpoint_dir=directory, progress=True
            )
            found, name = arrays_of(fitted), "resumed"
        else:
            found = own_rows() if name == "own rows" else CASES[name](None)
        np.savez(out / f"{name} {jax.process_index()}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
