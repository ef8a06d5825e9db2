"""Simulates parameters and data from a NumPyro model, and hands the data back to the model."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.infer import log_likelihood

from relbo.problem.call import Call, CallLayout, split_call
from relbo.problem.refusals import refuse_subsampled
from relbo.problem.simulation import refuse_factors, simulate
from relbo.problem.traces import NEEDS_VALUES, Model, Sites, initial_run, is_latent, is_observed

Values = dict[str, Array]
"""Values by site."""


class Simulation(NamedTuple):
    """Parameters drawn from the prior, and data drawn given them."""

    truth: Values
    """Latent and deterministic sites."""
    data: Values
    """Observed sites."""


class Simulator:
    """A model with proper priors and without factors, which draws its parameters and data."""

    def __init__(self, model: Model, call: Call):
        trace = initial_run(model, call)
        refuse_factors(trace)
        refuse_subsampled(trace)
        _refuse_params(trace)
        self.observed = [name for name, site in trace.items() if is_observed(site)]
        if not self.observed:
            raise ValueError(
                "args: the model has no observed site with these arguments; pass data in the "
                "shape of yours, such as args=(x, jnp.zeros(10)): their values do not matter"
            )
        self.latent = [name for name, site in trace.items() if is_latent(site)]
        self._model, self._call = model, call
        self._conditioned = ConditionedModel(model)
        # The arguments are constants, so that a program may use their values.
        self._draw = jax.jit(lambda key: self._simulated(key, call))
        self._places = self._find_places(trace)

    def draw(self, key: PRNGKeyArray) -> Simulation:
        return self._draw(key)

    def with_data(self, data: Values) -> tuple[Model, Call]:
        """Returns a model and its arguments for which `data` are observed.

        They are the model itself and its own arguments if it only observes these; otherwise
        the model is conditioned, and takes the data as its first argument. The model is the
        same object every time, so that it is compiled once.
        """
        if self._places is None:
            return self._conditioned, Call((data, *self._call.args), self._call.kwargs)
        return self._model, self._filled(self._places, data)

    def log_likelihood(
        self, draws: Mapping[str, ArrayLike], data: Values
    ) -> Float[Array, " draws"]:
        """Computes the log likelihood of data for each draw of all latent sites."""
        model, call = self.with_data(data)
        latent = {name: jnp.asarray(draws[name]) for name in self.latent}
        layout, arrays = split_call(call)
        try:
            return _log_likelihood(model, layout, latent, arrays)
        except NEEDS_VALUES:
            return _log_likelihood(model, layout.with_constants(arrays), latent, ())

    def _simulated(self, key: PRNGKeyArray, call: Call) -> Simulation:
        trace = simulate(self._model, key, call)
        kinds = ("sample", "deterministic")
        shown = {n: s["value"] for n, s in trace.items() if s["type"] in kinds}
        data = {name: shown.pop(name) for name in self.observed}
        return Simulation(shown, data)

    def _find_places(self, trace: dict[str, Sites]) -> dict[str, int] | None:
        """Finds the argument that each observed site observes; `None` if there is none."""
        leaves = jax.tree.leaves(self._call)
        places = {}
        for name in self.observed:
            found = [i for i, leaf in enumerate(leaves) if leaf is trace[name]["value"]]
            if len(found) != 1:
                return None
            places[name] = found[0]
        if len(set(places.values())) < len(places):
            return None
        # A model may use the same argument elsewhere, for example as lagged values.
        key = jr.key(0)
        drawn = self.draw(key)
        again = self._simulated(key, self._filled(places, drawn.data))
        pairs = zip(jax.tree.leaves(drawn), jax.tree.leaves(again), strict=True)
        is_same = all(jnp.allclose(one, other, rtol=1e-3) for one, other in pairs)
        return places if is_same else None

    def _filled(self, places: dict[str, int], data: Values) -> Call:
        leaves, structure = jax.tree.flatten(self._call)
        for name, place in places.items():
            leaves[place] = data[name]
        return jax.tree.unflatten(structure, leaves)


class ConditionedModel:
    """A program that takes the values of its observed sites as its first argument."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, data: Values, *args: Any, **kwargs: Any) -> Any:
        # Conditioning replaces the data that the model reads.
        return handlers.condition(self.model, data=dict(data))(*args, **kwargs)


@partial(jax.jit, static_argnums=(0, 1))
def _log_likelihood(
    model: Model, layout: CallLayout, latent: Values, arrays: tuple
) -> Float[Array, " draws"]:
    call = layout.fill(arrays)
    by_site = log_likelihood(model, latent, *call.args, parallel=True, **call.kwargs)
    rows = [jnp.sum(v.reshape(v.shape[0], -1), axis=1) for v in by_site.values()]
    return jnp.sum(jnp.stack(rows), axis=0)


def _refuse_params(trace: dict[str, Sites]) -> None:
    params = [name for name, site in trace.items() if site["type"] == "param"]
    if params:
        raise ValueError(
            f"the model has parameters {params} without a prior, which cannot be drawn: fix "
            "them with numpyro.handlers.substitute(model, data=params)"
        )
