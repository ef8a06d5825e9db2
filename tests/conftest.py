"""Strict numerics for every test: shapes checked, promotion refused, compilation cached."""

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
