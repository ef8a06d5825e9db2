"""Options of the compiler for programs that compile for longer than they run."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

_WANTED = {
    # A fifth less, and what is compiled is as fast.
    "xla_backend_optimization_level": 1,
    # Half of the rest: the newer emitters of loops on CPUs compile each one twice as long.
    "xla_cpu_use_fusion_emitters": False,
}


def quick_compilation() -> dict[str, Any] | None:
    """Returns options with which programs compile in half the time, `None` without any.

    They are for CPUs. An option that this version of XLA does not know is left out.
    """
    return _known_options() if jax.default_backend() == "cpu" else None


def quick_filter_jit(function: Callable) -> Callable:
    """Compiles a function of any pytrees, quickly where it is not part of a larger program."""
    filter_jit: Any = eqx.filter_jit

    def call(*args: Any) -> Any:
        # The first value is traced inside of any `jax.jit`.
        values = [jnp.zeros(()), *jax.tree.leaves(args)]
        is_part = any(isinstance(value, Tracer) for value in values)
        return filter_jit(function, compiler_options=None if is_part else quick_compilation())(
            *args
        )

    return call


@functools.cache
def _known_options() -> dict[str, Any]:
    return {name: value for name, value in _WANTED.items() if _is_known(name, value)}


def _is_known(name: str, value: Any) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except Exception:  # the type differs between versions
        return False
    return True
