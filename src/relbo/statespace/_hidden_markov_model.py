"""Hidden Markov models as a NumPyro program."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import ArrayLike

from relbo.statespace.distributions import HiddenMarkovSeries
from relbo.statespace.hidden_markov import HiddenMarkov


def hidden_markov_model(
    series: ArrayLike | None = None,
    *,
    num_states: int,
    num_symbols: int,
    concentration: float = 1.0,
    mask: ArrayLike | None = None,
    num_steps: int | None = None,
) -> None:
    """Defines a hidden Markov model as a NumPyro program (section 5.2 of the paper).

    The path is summed out. The rows of both matrices have Dirichlet priors, and all first
    states have the same probability. The sites are `transition`, `emission` and the observed
    `series`.

    Args:
        series: the symbols, `[t]`; `None` to draw them from the prior.
        num_states: k, the number of hidden states.
        num_symbols: s, the number of symbols.
        concentration: the concentration of the Dirichlet priors; 1 is flat.
        mask: `True` where the series was observed.
        num_steps: the length of the series if it is `None`.
    """
    rows = lambda size: dist.Dirichlet(jnp.full((num_states, size), concentration)).to_event(1)
    transition = numpyro.sample("transition", rows(num_states))
    emission = numpyro.sample("emission", rows(num_symbols))
    chain = HiddenMarkov(jnp.full(num_states, 1.0 / num_states), transition, emission)
    length = num_steps if series is None else jnp.shape(series)[0]
    if length is None:
        raise ValueError("num_steps: expected the length of the series to draw, got None")
    numpyro.sample("series", HiddenMarkovSeries(chain, length, mask), obs=series)
