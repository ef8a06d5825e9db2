"""The samplers that benchmarks/rivals.py compares, each as a stream of draws.

A sampler is a function of a model and its data. It returns a function of a key that yields:
`None` once it has adapted; then blocks of draws, `[chains, draws, latents]` in unconstrained
coordinates, which continue each other; or, for methods that return all draws at once,
`Restart(draws)`: the draws of a call of its own, each call asking for more than the last. The
first block is the usual budget of the method.
"""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ladder import Data, Model


class Restart(NamedTuple):
    """All draws of a call, whose time starts at the previous yield."""

    draws: np.ndarray


Stream = Callable[[Any], Iterator[np.ndarray | Restart | None]]


def relbo_stream(model: Model, data: Data) -> Stream:
    """Calls `relbo.infer` with its defaults, and for more draws if these are not enough."""
    import relbo

    def stream(key: Any) -> Iterator[Restart]:
        found = relbo.infer(key, model.program, (), data, progress=False)
        yield Restart(model.unconstrain(data, found.chains))
        num_draws = 4000
        while True:
            num_draws *= 4
            found = relbo.infer(
                key, model.program, (), data, num_draws=num_draws, progress=False
            )
            yield Restart(model.unconstrain(data, found.chains))

    return stream


def nuts_stream(chain_method: str) -> Callable[[Model, Data], Stream]:
    """NumPyro's NUTS with its defaults: 4 chains of 1000 + 1000.

    The kernel runs in one compiled loop of ours, for warm-up and draws: `MCMC.run` compiles
    again at every call, so its time without compilation could not be measured.
    """
    chains, length = 4, 1000

    def start(model: Model, data: Data) -> Stream:
        from numpyro.infer import NUTS

        kernel = NUTS(model.program)

        def init(key: Any, data: Data) -> Any:
            return kernel.init(key, length, None, (), data)

        def advance(state: Any, data: Data) -> Any:
            def step(state: Any, _: Any) -> Any:
                state = kernel.sample(state, (), data)
                return state, ravel_pytree(dict(state.z))[0]

            return jax.lax.scan(step, state, None, length=length)

        if chain_method == "parallel":
            all_chains = lambda function: jax.pmap(function, in_axes=(0, None))
        else:
            all_chains = lambda function: jax.jit(jax.vmap(function, in_axes=(0, None)))
        init_all, advance_all = all_chains(init), all_chains(advance)

        def stream(key: Any) -> Iterator[np.ndarray | None]:
            state = init_all(jax.random.split(key, chains), data)
            state, _ = jax.block_until_ready(advance_all(state, data))
            yield None
            while True:
                state, draws = advance_all(state, data)
                yield np.asarray(draws)

        return stream

    return start


def _flat_density(model: Model, data: Data) -> tuple[Any, Any, Any]:
    """Returns the log density of a vector, a function that draws starts, and the size."""
    from numpyro.infer.util import initialize_model

    info, energy, _, _ = initialize_model(
        jax.random.key(0), model.program, model_kwargs=data, dynamic_args=False
    )
    # Dictionaries are raveled in the order of their sorted names, as in Model.unconstrain.
    flat, unravel = ravel_pytree(dict(info.z))
    size = flat.size
    # NumPyro's own starts: uniform between -2 and 2.
    draw_start = lambda key: jax.random.uniform(key, (size,), minval=-2.0, maxval=2.0)
    return lambda x: -energy(unravel(x)), draw_start, size


def mams_stream(mean_steps: float) -> Callable[[Model, Data], Stream]:
    """BlackJAX's adjusted microcanonical sampler: 4 chains, every tenth draw kept.

    Its tuning is for the given mean number of integration steps; 2 is BlackJAX's default.
    """
    chains, length, thinning = 4, 1000, 10

    def start(model: Model, data: Data) -> Stream:
        import blackjax
        from blackjax.mcmc.adjusted_mclmc_dynamic import rescale

        logdensity, draw_start, _ = _flat_density(model, data)
        kernel = blackjax.adjusted_mclmc_dynamic.build_kernel(
            integration_steps_fn=lambda key, mean: jnp.ceil(
                jax.random.uniform(key) * rescale(mean)
            )
        )

        def tune(key: Any) -> Any:
            start_key, state_key, tune_key = jax.random.split(key, 3)
            state = blackjax.adjusted_mclmc_dynamic.init(
                draw_start(start_key), logdensity, state_key
            )
            state, found, _ = blackjax.adjusted_mclmc_find_L_and_step_size(
                kernel,
                logdensity,
                num_steps=length * thinning,
                state=state,
                rng_key=tune_key,
                target=0.9,
                target_num_integration_steps=mean_steps,
            )
            return state, found

        def sample(key: Any, state: Any, found: Any) -> Any:
            def step(state: Any, key: Any) -> Any:
                state, _ = kernel(
                    key,
                    state,
                    logdensity,
                    step_size=found.step_size,
                    inverse_mass_matrix=found.inverse_mass_matrix,
                    integration_steps_params=(found.L / found.step_size,),
                )
                return state, None

            def kept(state: Any, key: Any) -> Any:
                state, _ = jax.lax.scan(step, state, jax.random.split(key, thinning))
                return state, state.position

            return jax.lax.scan(kept, state, jax.random.split(key, length))

        tune_all, sample_all = jax.jit(jax.vmap(tune)), jax.jit(jax.vmap(sample))

        def stream(key: Any) -> Iterator[np.ndarray | None]:
            key, tune_key = jax.random.split(key)
            state, found = jax.block_until_ready(tune_all(jax.random.split(tune_key, chains)))
            yield None
            while True:
                key, block_key = jax.random.split(key)
                state, draws = sample_all(jax.random.split(block_key, chains), state, found)
                yield np.asarray(draws)

        return stream

    return start


def laps_stream(model: Model, data: Data) -> Stream:
    """BlackJAX's late adjusted parallel sampler: 256 chains, above 1,000 latents 64.

    The draws are those of the adjusted phase after its step size is fixed: 20 of each chain.
    LAPS compiles at every call, so its two times are about the same.
    """
    from blackjax import eca
    from blackjax.adaptation.laps import laps

    # LAPS calls shard_map without jit, which compiles every operation by itself.
    eca.shard_map = lambda function, **options: jax.jit(
        jax.shard_map(function, check_vma=False, **options)
    )
    logdensity, draw_start, size = _flat_density(model, data)
    num_chains = 256 if size <= 1000 else 64
    gradients = 15 * (4 if size > 200 else 2)  # per draw, with the integrator of each size

    def run(key: Any, num_draws: int) -> Restart:
        info, *_ = laps(
            logdensity,
            draw_start,
            size,
            num_steps1=500,
            num_steps2=2 * num_draws * gradients,
            num_chains=num_chains,
            mesh=jax.sharding.Mesh(np.array(jax.devices()[:1]), ("chains",)),
            rng_key=key,
            all_chains_info=lambda x: x,
        )
        assert info is not None
        draws = np.asarray(info["phase_2"]["all_chains_info"])[num_draws:]
        return Restart(np.swapaxes(draws, 0, 1))

    def stream(key: Any) -> Iterator[Restart]:
        num_draws = 20
        while True:
            yield run(key, num_draws)
            num_draws *= 4

    return stream


def nutpie_stream(model: Model, data: Data) -> Stream:
    """nutpie with its defaults for a PyMC model: 4 chains of 400 + 1000."""
    import nutpie

    import ladder_pymc

    def stream(key: Any) -> Iterator[Restart]:
        seed = int(jax.random.randint(key, (), 0, 2**30))
        # The cold call compiles; nutpie's compiled model is reused by the warm one.
        if not compiled:
            compiled.append(nutpie.compile_pymc_model(ladder_pymc.MODELS[model.name](**data)))
        draws = 1000
        while True:
            found = nutpie.sample(
                compiled[0], draws=draws, chains=4, seed=seed, progress_bar=False
            )
            posterior = found.posterior
            sites = {name: posterior[name].values for name in model.transforms(data)}
            yield Restart(model.unconstrain(data, sites))
            draws *= 4

    compiled: list[Any] = []
    return stream


def missing(method: str, model: str) -> str | None:
    """Says why a method cannot run on a model, or `None` if it can."""
    if method != "nutpie":
        return None
    absent = [name for name in ("nutpie", "pymc") if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed"
    import ladder_pymc

    return None if model in ladder_pymc.MODELS else "not written in PyMC"


# Each method by its variants, of which the fastest counts.
METHODS: dict[str, tuple[str, ...]] = {
    "relbo": ("infer",),
    "NUTS": ("vectorized", "parallel"),
    "MAMS": ("mams-2", "mams-10"),
    "LAPS": ("laps",),
    "nutpie": ("nutpie",),
}
VARIANTS: dict[str, Callable[[Model, Data], Stream]] = {
    "infer": relbo_stream,
    "vectorized": nuts_stream("vectorized"),
    "parallel": nuts_stream("parallel"),
    "mams-2": mams_stream(2.0),
    "mams-10": mams_stream(10.0),
    "laps": laps_stream,
    "nutpie": nutpie_stream,
}
