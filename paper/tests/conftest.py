"""Strict numerics for every test of the paper, with the library's compilation cache."""

from pathlib import Path

import jax
import pytest

from compilation import compile_fast

compile_fast()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_platforms", "cpu")
# The programs are small, so compilation dominates.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).resolve().parents[2] / ".jax_cache")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def x64():
    """Runs a test in float64."""
    with jax.enable_x64(True):
        yield
