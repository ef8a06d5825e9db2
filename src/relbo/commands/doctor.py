"""`relbo doctor`: what is installed, and whether a small compiled run works."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from relbo._machine import describe_machine, free_memory_gb
from relbo.experiments._metrics import package_versions, source_commit

_LITTLE_MEMORY_GB = 2.0


class Finding(NamedTuple):
    """One line of what the doctor says."""

    name: str
    text: str
    advice: str = ""
    """What to do; empty where all is well."""


def run() -> bool:
    """Prints every finding; whether everything works."""
    well = True
    for check in (_versions, _machine, _memory, _devices, _precision, _compiled_run):
        for finding in _guarded(check):
            well = well and not finding.advice
            print(f"{'fails' if finding.advice else 'ok':<6}{finding.name:<14}{finding.text}")
            if finding.advice:
                print(f"{'':<20}{finding.advice}")
    print("Everything works." if well else "Something does not work: see above.")
    return well


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of one check; what it raises is a finding too, not the end of the others."""
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        said = str(error).strip().splitlines() or [""]
        yield Finding(name, f"{type(error).__name__}: {said[0]}", _ADVICE[check])


def _versions() -> Iterator[Finding]:
    versions = package_versions()
    yield Finding("versions", ", ".join(f"{name} {v}" for name, v in versions.items()))
    commit = source_commit()
    if commit is not None:
        yield Finding("commit", commit)


def _machine() -> Iterator[Finding]:
    machine = describe_machine()
    yield Finding("python", machine["python"])
    yield Finding("machine", f"{machine['platform']}, {machine['cpus']} cores")
    yield Finding("processor", machine["processor"])


def _memory() -> Iterator[Finding]:
    total, free = describe_machine()["memory_gb"], free_memory_gb()
    if total is None:
        yield Finding("memory", "unknown on this platform")
        return
    text = f"{total:g} GB" + ("" if free is None else f", {free:g} GB free")
    little = free is not None and free < _LITTLE_MEMORY_GB
    advice = f"Close something: less than {_LITTLE_MEMORY_GB:g} GB are free." if little else ""
    yield Finding("memory", text, advice)


def _devices() -> Iterator[Finding]:
    import jax

    kinds = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
    yield Finding("devices", ", ".join(kinds))


def _precision() -> Iterator[Finding]:
    import jax

    state = "on" if jax.config.read("jax_enable_x64") else "off"
    yield Finding("x64", f"{state} by default (`relbo fit` turns it on for itself)")


def _compiled_run() -> Iterator[Finding]:
    """Annealed Hamiltonian steps between two normals, whose evidence is known to be 1."""
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
        refined = refinement(key, base, logdensity_fn, num_particles=4096)
        log_weights = jax.vmap(logdensity_fn)(refined.position) - refined.log_q
        return jax.nn.logsumexp(log_weights) - jnp.log(log_weights.size)

    begin = time.perf_counter()
    found = float(log_evidence(jr.key(0)))
    compiled = time.perf_counter()
    log_evidence(jr.key(1)).block_until_ready()
    again = time.perf_counter() - compiled
    # Some five standard errors; False for NaN too.
    right = abs(found) < 0.15
    text = (
        f"8 steps, 4096 particles: log Z {found:.3f} (exact: 0), "
        f"{compiled - begin:.1f} s with compilation, {1e3 * again:.0f} ms after"
    )
    yield Finding("compiled", text, "" if right else _ADVICE[_compiled_run])


_REINSTALL = "Install again in an empty environment: python -m venv; pip install relbo."
_ADVICE: dict[Callable[[], Iterator[Finding]], str] = {
    _versions: _REINSTALL,
    _machine: _REINSTALL,
    _memory: _REINSTALL,
    _devices: "JAX finds no device: set JAX_PLATFORMS=cpu, or install it for the accelerator.",
    _precision: _REINSTALL,
    _compiled_run: "JAX compiles wrongly here: run pip check, compare the versions above, "
    "and set JAX_PLATFORMS=cpu to see whether it is the accelerator.",
}
