"""Checks the installation for `relbo doctor`."""

import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import NamedTuple

_PACKAGES = ("relbo", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy")


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    text: str
    advice: str = ""
    """What to do about a failure; empty if the check passed."""


def run_doctor() -> bool:
    """Prints every finding and returns whether all checks passed."""
    passed = True
    for check in (_versions, _machine, _devices, _precision, _compiled_run):
        for finding in _guarded(check):
            passed = passed and not finding.advice
            print(f"{'fails' if finding.advice else 'ok':<6}{finding.name:<14}{finding.text}")
            if finding.advice:
                print(f"{'':<20}{finding.advice}")
    print("Everything works." if passed else "A check failed: see above.")
    return passed


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Turns an exception of a check into a finding, so that the other checks still run."""
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        lines = str(error).strip().splitlines() or [""]
        yield Finding(name, f"{type(error).__name__}: {lines[0]}", _ADVICE[check])


def _versions() -> Iterator[Finding]:
    yield Finding("versions", ", ".join(f"{name} {version(name)}" for name in _PACKAGES))
    yield Finding("python", platform.python_version())


def _machine() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("machine", f"{system}, {os.cpu_count()} cores")


def _devices() -> Iterator[Finding]:
    import jax

    kinds = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
    yield Finding("devices", ", ".join(kinds))


def _precision() -> Iterator[Finding]:
    import jax

    state = "on" if jax.config.read("jax_enable_x64") else "off"
    yield Finding("x64", f"{state} by default (`relbo fit` turns it on)")


def _compiled_run() -> Iterator[Finding]:
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
        log_weights = jax.vmap(logdensity_fn)(refined.position) - refined.log_q
        return jax.nn.logsumexp(log_weights) - jnp.log(log_weights.size)

    begin = time.perf_counter()
    found = float(log_evidence(jr.key(0)))
    compiled = time.perf_counter()
    log_evidence(jr.key(1)).block_until_ready()
    again = time.perf_counter() - compiled
    # About five standard errors; False for NaN.
    is_right = abs(found) < 0.15
    text = (
        f"8 steps, 4096 draws: log Z {found:.3f} (exact: 0), "
        f"{compiled - begin:.1f} s with compilation, {1e3 * again:.0f} ms after"
    )
    yield Finding("compiled", text, "" if is_right else _ADVICE[_compiled_run])


_REINSTALL = "Install again in an empty environment: python -m venv; pip install relbo."
_ADVICE: dict[Callable[[], Iterator[Finding]], str] = {
    _versions: _REINSTALL,
    _machine: _REINSTALL,
    _devices: "JAX finds no device: set JAX_PLATFORMS=cpu, or install JAX for the accelerator.",
    _precision: _REINSTALL,
    _compiled_run: "The compiled result is wrong: run pip check, compare the versions above, "
    "and set JAX_PLATFORMS=cpu to see whether the accelerator is the cause.",
}
