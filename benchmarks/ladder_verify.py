"""Checks that the models of benchmarks/ladder_pymc.py are those of benchmarks/ladder.py.

The log densities in unconstrained coordinates are compared at random points, in float64. They
may differ by a constant, so what counts is how much the difference varies from point to point.
"""

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model

import ladder_pymc
from ladder import MODELS, Data, Model

NUM_POINTS = 5
# Of the largest log density: rounding in sums of up to 100,000 terms.
TOLERANCE = 1e-9


def verify(names: list[str]) -> None:
    """Prints one line per model, and exits with an error if any two densities differ."""
    jax.config.update("jax_enable_x64", True)
    different = []
    for name in names:
        if name not in ladder_pymc.MODELS:
            print(f"{name:22}not written in PyMC")
            continue
        variation = density_variation(MODELS[name])
        print(f"{name:22}difference varies by {variation:.1e} of the log density", flush=True)
        if not variation < TOLERANCE:
            different.append(name)
    if different:
        raise SystemExit(f"different densities: {', '.join(different)}")


def density_variation(model: Model) -> float:
    """Returns the range of the difference of the two log densities over their largest size."""
    data = model.data()
    info, energy, _, _ = initialize_model(
        jax.random.key(0), model.program, model_kwargs=data, dynamic_args=False
    )
    flat, unravel = ravel_pytree(dict(info.z))
    points = [
        {name: np.asarray(value) for name, value in unravel(0.5 * draw).items()}
        for draw in np.random.default_rng(0).normal(size=(NUM_POINTS, flat.size))
    ]
    ours = np.array([-float(energy(point)) for point in points])
    theirs = _pymc_densities(model, data, points)
    return float(np.ptp(ours - theirs) / np.abs(ours).max())


def _pymc_densities(
    model: Model, data: Data, points: list[dict[str, np.ndarray]]
) -> np.ndarray:
    program = ladder_pymc.MODELS[model.name](**data)
    logp = program.compile_logp()
    sites = {
        variable.name: _site_of(variable.name, points[0]) for variable in program.value_vars
    }
    return np.array(
        [logp({name: point[site] for name, site in sites.items()}) for point in points]
    )


def _site_of(variable: str, sites: dict[str, np.ndarray]) -> str:
    """Finds the site of an unconstrained variable of PyMC, such as `tau` for `tau_log__`."""
    matching = [site for site in sites if variable == site or variable.startswith(f"{site}_")]
    return max(matching, key=len)
