"""Draws parameters and data from a NumPyro program."""

from typing import Any

from jaxtyping import PRNGKeyArray
from numpyro import handlers
from numpyro.primitives import Messenger

from relbo.problem.call import Call
from relbo.problem.traces import Model, Sites, batch_shape, is_factor, run


class Unobserved(Messenger):
    """Draws observed sites, in the shape of their data."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or not msg["is_observed"] or is_factor(msg):
            return
        batch = batch_shape(msg)
        if msg["fn"].batch_shape != batch:
            msg["fn"] = msg["fn"].expand(batch)
        msg["value"], msg["is_observed"] = None, False


def simulate(model: Model, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
    """Runs a program in which all sites are drawn, and returns its trace."""
    try:
        with handlers.block():
            return run(handlers.seed(Unobserved(model), key), call)
    except NotImplementedError as error:
        raise ValueError(
            "the model has a site that cannot be drawn, such as an improper prior: the "
            "check needs a model that draws its own parameters and data"
        ) from error


def refuse_factors(trace: dict[str, Sites]) -> None:
    """Refuses a model with factors, whose data cannot be drawn."""
    factors = [n for n, s in trace.items() if s["type"] == "sample" and is_factor(s)]
    if factors:
        raise ValueError(
            f"the model has the factors {factors}, which cannot be simulated: the check "
            "needs a model that draws its own data"
        )
