"""Strict numerics for every test: shapes checked, promotion refused, compilation cached."""

import gc
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_platforms", "cpu")
# The programs are small: most of a test is compilation.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).resolve().parent.parent / ".jax_cache")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

MOST_MAPS = 30_000

# Shapes are checked inside; the public constructors speak for themselves about bad input.
install_import_hook(
    ["relbo.kernels", "relbo._walk", "relbo._parameters", "relbo.annealing", "relbo.objective"],
    "beartype.beartype",
)


@pytest.fixture
def x64():
    """Runs a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _room_for_compiled_programs():
    """Forgets compiled programs before the process runs out of memory maps.

    Each program takes several maps, Linux allows 65530 in a process, and beyond that a worker
    dies without a word.
    """
    yield
    if _maps_in_use() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def _maps_in_use() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0
