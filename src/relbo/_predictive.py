"""What a model says of its data, given draws of a posterior."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PyTree
from numpyro import handlers
from numpyro.distributions import Unit
from numpyro.infer import Predictive, log_likelihood
from numpyro.primitives import Messenger

from relbo._program import Call, Model


class Program(NamedTuple):
    """A model with its arguments, for what is computed from draws on request."""

    model: Model
    call: Call
    given: dict[str, PyTree]

    def observed(self) -> dict[str, np.ndarray]:
        trace = handlers.trace(self._seeded(0)).get_trace(*self.call.args, **self.call.kwargs)
        return {
            name: np.asarray(site["value"])
            for name, site in trace.items()
            if site["type"] == "sample" and site["is_observed"] and not _is_factor(site)
        }

    def log_likelihood(self, chains: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = log_likelihood(
            handlers.substitute(self.model, data=self.given),
            _flattened(chains),
            *self.call.args,
            parallel=True,
            **self.call.kwargs,
        )
        return _grouped({n: v for n, v in values.items() if n in self.observed()}, chains)

    def predictive(self, chains: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
        names = list(self.observed())
        program = _Unobserved(handlers.substitute(self.model, data=self.given))
        predict = Predictive(program, _flattened(chains), return_sites=names, parallel=True)
        values = predict(jr.key(seed), *self.call.args, **self.call.kwargs)
        return _grouped(values, chains)

    def _seeded(self, seed: int) -> Any:
        return handlers.seed(handlers.substitute(self.model, data=self.given), seed)


class _Unobserved(Messenger):
    """Draws what was observed, in its shape: a program may leave that to the data."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or not msg["is_observed"] or _is_factor(msg):
            return
        shape = jnp.shape(msg["value"])
        batch = shape[: len(shape) - msg["fn"].event_dim]
        if msg["fn"].batch_shape != batch:
            msg["fn"] = msg["fn"].expand(batch)
        msg["value"], msg["is_observed"] = None, False


def _is_factor(site: dict[str, Any]) -> bool:
    return isinstance(site["fn"], Unit)


def _flattened(chains: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in chains.items()}


def _grouped(values: dict[str, Any], chains: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    shape = next(iter(chains.values())).shape[:2]
    return {n: np.asarray(v).reshape(*shape, *v.shape[1:]) for n, v in values.items()}
