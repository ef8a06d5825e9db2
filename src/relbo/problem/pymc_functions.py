"""Functions of a PyMC model that JAX can call."""
# pyright: reportMissingImports=false

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from relbo.problem.call import ByIdentity
from relbo.problem.foreign import host_logdensity


def _import_jax_backend() -> ModuleType:
    """Imports PyMC's JAX backend, and undoes what that changes for the whole process.

    It switches JAX to float64 and asks for 100 devices.
    """
    flags, precision = os.environ.get("XLA_FLAGS"), jax.config.read("jax_enable_x64")
    import pymc.sampling.jax as backend

    jax.config.update("jax_enable_x64", precision)
    os.environ.pop("XLA_FLAGS", None)
    if flags is not None:
        os.environ["XLA_FLAGS"] = flags
    return backend


# In a thread of its own, where the caller's `with jax.enable_x64(...)` does not hold.
with ThreadPoolExecutor(1) as _executor:
    _backend = _executor.submit(_import_jax_backend).result()


def graph_in_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns PyTensor's graph as a function in JAX, with constants in JAX's precision.

    Raises:
        NotImplementedError: if some part of the graph has no form in JAX.
    """
    with jax.ensure_compile_time_eval(), _quietly():
        function = _backend.get_jaxified_graph(inputs=list(inputs), outputs=list(outputs))

    def run(*values: Array) -> Any:
        with jax.numpy_rank_promotion("allow"), _quietly():
            return function(*values)

    return run


def logdensity_function(model: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns the log density of a model as a function of its value variables.

    It runs in JAX if it can, and otherwise on the host, as PyTensor compiles it.
    """
    try:
        function = graph_in_jax(inputs, [model.logp()])
        return lambda *values: function(*values)[0]
    except NotImplementedError:
        compiled = ByIdentity(_CompiledDensity(model, inputs))
        ravel = lambda values: jnp.concatenate([jnp.ravel(value) for value in values])
        return lambda *values: host_logdensity(compiled, ravel(values))


class _CompiledDensity:
    """The log density of a model with its gradient, compiled by PyTensor."""

    def __init__(self, model: Any, inputs: Sequence[Any]):
        self._function = model.logp_dlogp_function(list(inputs), ravel_inputs=True)
        self._function.set_extra_values({})

    def log_density_gradient(self, theta_unc: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self._function(theta_unc)
        return float(value), gradient


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences JAX, which computes in float32 where PyTensor's graph asks for float64."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        yield
