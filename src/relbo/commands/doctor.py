"""Checks the installation for `relbo doctor`."""

import os
import platform
import textwrap
import time
from collections.abc import Callable
from importlib.metadata import version

_PACKAGES = ("relbo", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy")
_REINSTALL = "Install again in an empty environment: python -m venv; pip install relbo."
_ADVICE = {
    "devices": "JAX finds no device: set JAX_PLATFORMS=cpu, or install JAX for the "
    "accelerator.",
    "compiled": "The compiled result is wrong: run pip check, compare the versions above, and "
    "set JAX_PLATFORMS=cpu to see whether the accelerator is the cause.",
}


def run_doctor() -> bool:
    """Prints the result of every check and returns whether all checks passed."""
    passed = True
    for name, describe in _CHECKS.items():
        try:
            print(_row("ok", name, describe()))
        except Exception as error:
            passed = False
            lines = str(error).strip().splitlines() or [""]
            print(_row("fails", name, f"{type(error).__name__}: {lines[0]}"))
            print(_row("", "", _ADVICE.get(name, _REINSTALL)))
    print("Everything works." if passed else "A check failed: see above.")
    return passed


def _row(verdict: str, name: str, text: str) -> str:
    """Returns lines of at most 80 characters, with the text in the third column."""
    begin = f"{verdict:<6}{name:<14}"
    return textwrap.fill(
        text,
        width=80,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in _PACKAGES)


def _machine() -> str:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{system}, {os.cpu_count()} cores"


def _devices() -> str:
    import jax

    return ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices())


def _precision() -> str:
    import jax

    state = "on" if jax.config.read("jax_enable_x64") else "off"
    return f"{state} by default (`relbo fit` turns it on)"


def _compiled_run() -> str:
    """Anneals between two normalised densities, so that the exact log evidence is 0."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr

    import relbo

    refinement = relbo.Refinement(relbo.Underdamped(0.1), num_steps=8, anneal=True)

    def logdensity_fn(z: jax.Array) -> jax.Array:
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, 1.0, 0.5))

    @eqx.filter_jit
    def log_evidence(key: jax.Array) -> jax.Array:
        base = relbo.DiagonalNormal(jnp.zeros(2))
        refined = refinement(key, base, logdensity_fn, num_draws=4096)
        return relbo.log_mean_exp(jax.vmap(logdensity_fn)(refined.position) - refined.log_q)

    begin = time.perf_counter()
    found = float(log_evidence(jr.key(0)))
    compiled = time.perf_counter()
    log_evidence(jr.key(1)).block_until_ready()
    again = time.perf_counter() - compiled
    # About five standard errors; False for NaN.
    if not abs(found) < 0.15:
        raise ArithmeticError(f"log Z {found:.3f} (exact: 0)")
    return (
        f"8 steps, 4096 draws: log Z {found:.3f} (exact: 0), "
        f"{compiled - begin:.1f} s with compilation, {1e3 * again:.0f} ms after"
    )


# Each check describes what it found, or raises an exception.
_CHECKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "python": platform.python_version,
    "machine": _machine,
    "devices": _devices,
    "x64": _precision,
    "compiled": _compiled_run,
}
