"""Keeps compiled programs on disk, for other processes."""

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

MAX_BYTES = 2**30
"""The largest size of all files together."""


def use_compilation_cache(directory: str | Path | None = None) -> Path:
    """Keeps compiled programs on disk, so that the next process need not compile them.

    It switches on JAX's persistent cache for programs of every size: JAX itself leaves out what
    compiles in less than a second, which most programs here do. A program is found again if
    the model, the shapes of its data, the versions of the packages and the kind of device are
    the same. Old files are deleted when there is more than a gigabyte of them.

    Args:
        directory: where to keep them; by default `relbo/jax` in `$XDG_CACHE_HOME` or
            `~/.cache`. Everybody who can write to it can run code in your processes.

    Returns:
        The directory.

    Example:
        >>> import relbo
        >>> directory = relbo.use_compilation_cache()
    """
    if directory is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(home) / "relbo" / "jax"
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    # JAX decides at its first compilation whether there is a cache.
    compilation_cache.reset_cache()
    return path
