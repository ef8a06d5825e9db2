"""Strict numerics for every test: shapes are checked, rank promotion is an error."""

import gc
from pathlib import Path

import jax
import jax.monitoring
import jaxtyping
import pytest
from jaxtyping import install_import_hook

from browser import driver
from compilation import compile_fast

compile_fast()
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_platforms", "cpu")
# The programs are small, so compilation dominates.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).resolve().parent.parent / ".jax_cache")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

MOST_MAPS = 30_000

install_import_hook("relbo", "beartype.beartype")


@pytest.fixture
def wrong_types():
    """Switches the checks off, for a test that passes wrong types to see our own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def x64():
    """Runs a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compilations():
    """Lists the functions that JAX has lowered or compiled since."""
    found, is_on = [], True

    def listen(event, *_, fun_name="", **__):
        is_trace = event.endswith("trace_duration")
        if is_on and event.startswith("/jax/core/compile/") and not is_trace:
            found.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    is_on = False


@pytest.fixture(autouse=True)
def _room_for_compiled_programs():
    """Clears compiled programs before the process runs out of memory maps.

    Each program takes several maps. Linux allows 65530 per process; beyond that a worker dies
    without a message.
    """
    yield
    if _maps_in_use() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def _maps_in_use() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """One page of Chromium."""
    chromium = driver()
    if not chromium.EXECUTABLE:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("websocket")
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
