"""Models with subsampled plates, read with all of their data."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.primitives import Messenger

from relbo.problem.call import Call, checked_call, split_call
from relbo.problem.front_ends import read
from relbo.problem.refusals import (
    NEEDS_VALUES,
    SubsampledPlatesError,
    refuse_unreachable_data,
)
from relbo.problem.traces import Model, initial_run


@dataclasses.dataclass(frozen=True)
class WholeData:
    """A model that ignores the `subsample_size` of its plates.

    Two of them are equal if their models are, so that a second run compiles nothing.
    """

    model: Model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _WholePlates():
            return self.model(*args, **kwargs)


class _WholePlates(Messenger):
    """Gives every plate all of its indices."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size = msg["args"][0]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


def subsampled_plates(model: Any, args: tuple, kwargs: dict[str, Any] | None) -> list[str]:
    """Returns the names of the plates that a model subsamples."""
    try:
        read(model, args, kwargs)
    except SubsampledPlatesError as error:
        return error.plates
    except ValueError:
        # There may be a remedy, such as a guide for parameters without a prior.
        return []
    return []


def with_whole_data(
    model: Model, args: tuple, kwargs: dict[str, Any] | None, plates: list[str]
) -> WholeData:
    """Returns the model with all of the data of its plates.

    Raises:
        ValueError: if the arguments do not contain all the data.
    """
    whole = WholeData(model)
    layout, arrays = split_call(checked_call(args, kwargs))

    def visit(arrays: tuple) -> None:
        refuse_unreachable_data(initial_run(whole, layout.fill(arrays)), plates)

    try:
        try:
            jax.eval_shape(visit, arrays)
        except NEEDS_VALUES:
            visit(arrays)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"args: the plates {plates} are subsampled, and the model does not run with all of "
            f"their indices ({error}). An exact log density needs all the data: pass all rows "
            "and take the minibatch inside the model, `with numpyro.plate(name, len(x), "
            "subsample_size=n) as rows: x[rows]`, or train a guide with relbo.fit alone"
        ) from error
    return whole


def with_jax_arrays(args: tuple, kwargs: dict[str, Any] | None) -> Call:
    """Returns arguments whose arrays can be indexed by the indices of a minibatch."""
    layout, arrays = split_call(checked_call(args, kwargs))
    return layout.fill(tuple(map(jnp.asarray, arrays)))
