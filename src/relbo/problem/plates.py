"""Models with subsampled plates: all of their data, or cheap minibatches."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray
from numpyro.primitives import Messenger

from relbo.problem.call import Call, Keywords, checked_call, split_call
from relbo.problem.front_ends import read
from relbo.problem.refusals import SubsampledPlatesError, refuse_unreachable_data
from relbo.problem.traces import Model, initial_run, trace_abstractly

NUM_FIXED_ROWS = 16_384
"""The number of rows of a fixed minibatch, where the model can take them."""


@dataclasses.dataclass(frozen=True)
class ModelWithPlates:
    """A model whose plates take other indices.

    Two of them are equal if their models are, so that a second run compiles nothing.
    """

    model: Model
    plates: type[Messenger]
    """One of the handlers below."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.plates():
            return self.model(*args, **kwargs)


class WholePlates(Messenger):
    """Gives every plate all of its indices."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size = msg["args"][0]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


class FixedMinibatch(Messenger):
    """Gives every subsampled plate the same indices in each run, and a density thereby."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if is_subsampled_plate(msg):
            size, number = msg["args"]
            if msg["fn"] is stratified_indices:
                # The model takes whatever indices it is given, so more of them are possible.
                number = max(number, min(size, NUM_FIXED_ROWS))
            msg["args"] = (number, number)
            msg["value"] = stratified_indices(size, number, jr.key(0))


class StratifiedMinibatches(Messenger):
    """Draws the indices of a minibatch at a cost that does not grow with the plate.

    For models that take their data by these indices.
    """

    def process_message(self, msg: dict[str, Any]) -> None:
        if is_subsampled_plate(msg):
            msg["fn"] = stratified_indices


def is_subsampled_plate(msg: dict[str, Any]) -> bool:
    return msg["type"] == "plate" and msg["value"] is None


def stratified_indices(size: int, number: int, rng_key: PRNGKeyArray) -> Int[Array, " n"]:
    """Draws different indices below `size`, one from each of `number` strata.

    The strata are rotated at random, so that every index is drawn with the same probability.
    """
    start_key, key = jr.split(rng_key)
    edges = np.linspace(0, size, number + 1).astype(np.int32)
    inside = jr.randint(key, (number,), edges[:-1], edges[1:])
    return (inside + jr.randint(start_key, (), 0, size)) % size


@functools.lru_cache(8)
def with_stratified_minibatches(model: Model) -> ModelWithPlates:
    """Returns the same object for the same model, as the compiled programs of `fit` need."""
    return ModelWithPlates(model, StratifiedMinibatches)


def subsampled_plates(model: Any, args: tuple, kwargs: Keywords) -> list[str]:
    """Returns the names of the plates that a model subsamples."""
    if not callable(model):
        return []
    try:
        read(model, args, kwargs)
    except SubsampledPlatesError as error:
        return error.plates
    except ValueError:
        # There may be a remedy, such as a guide for parameters without a prior.
        return []
    return []


def with_whole_data(
    model: Model, args: tuple, kwargs: Keywords, plates: list[str]
) -> ModelWithPlates:
    """Returns the model with all of the data of its plates.

    Raises:
        ValueError: if the arguments do not contain all the data.
    """
    whole = ModelWithPlates(model, WholePlates)
    layout, arrays = split_call(checked_call(args, kwargs))

    def visit(arrays: tuple) -> None:
        refuse_unreachable_data(initial_run(whole, layout.fill(arrays)), plates)

    try:
        trace_abstractly(visit, arrays)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"args: the plates {plates} are subsampled, and the model does not run with all of "
            f"their indices ({error}). An exact log density needs all the data: pass all rows "
            "and take the minibatch inside the model, `with numpyro.plate(name, len(x), "
            "subsample_size=n) as rows: x[rows]`, or train a guide with relbo.fit alone"
        ) from error
    return whole


def with_jax_arrays(args: tuple, kwargs: Keywords) -> Call:
    """Returns arguments whose arrays can be indexed by the indices of a minibatch."""
    layout, arrays = split_call(checked_call(args, kwargs))
    return layout.fill(tuple(map(jnp.asarray, arrays)))
