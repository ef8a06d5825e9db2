"""The samplers that benchmarks/rivals.py holds relbo against, each as a stream of draws.

A sampler is a function of a model and its data. It returns a function of a key that yields:
`None` once it has adapted; then blocks of draws, `[chains, draws, latents]` in unconstrained
coordinates, which continue each other; or, for methods that return all draws at once,
`Restart(draws)`: the draws of a call of its own, each call asking for more than the last. The
first block is the usual budget of the method.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ladder import Data, Model


class Seconds(NamedTuple):
    """A time, or a difference of two, by the wall clock and by the processor's."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls) -> "Seconds":
        return cls(time.perf_counter(), time.process_time())

    def plus(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def minus(self, other: "Seconds") -> "Seconds":
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


class Restart(NamedTuple):
    """All draws of a call, whose time starts at the previous yield.

    `compilation` is the part of that time that every call spends on compiling again.
    """

    draws: np.ndarray
    compilation: Seconds = Seconds()


Stream = Callable[[Any], Iterator[np.ndarray | Restart | None]]


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
    """BlackJAX's adjusted microcanonical sampler: 4 chains, a draw kept every 20 gradients.

    Its tuning is for the given mean number of integration steps; 2 is BlackJAX's default.
    """
    chains, length, thinning = 4, 1000, round(20 / mean_steps)

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
    LAPS compiles at every call; what that took is told apart.
    """
    from blackjax import eca
    from blackjax.adaptation.laps import laps

    compilation: list[Seconds] = []

    def compiled_shard_map(function: Any, **options: Any) -> Callable[..., Any]:
        """LAPS calls shard_map without jit, which compiles every operation by itself."""
        program = jax.jit(jax.shard_map(function, check_vma=False, **options))

        def call(*args: Any) -> Any:
            start = Seconds.now()
            compiled = program.lower(*args).compile()
            compilation.append(Seconds.now().minus(start))
            return compiled(*args)

        return call

    eca.shard_map = compiled_shard_map
    logdensity, draw_start, size = _flat_density(model, data)
    num_chains = 256 if size <= 1000 else 64
    gradients = 15 * (4 if size > 200 else 2)  # per draw, with the integrator of each size

    def run(key: Any, num_draws: int) -> Restart:
        compilation.clear()
        info, *_ = laps(
            logdensity,
            draw_start,
            size,
            num_steps1=500,
            num_steps2=2 * num_draws * gradients,
            num_chains=num_chains,
            mesh=jax.sharding.Mesh(np.array(jax.devices()[:1]), ("chains",)),
            rng_key=key,
            # Positions of all chains at all steps are kept: 1.3 GB for 10,000 latents.
            all_chains_info=lambda x: x.astype(jnp.float32),
        )
        assert info is not None
        draws = np.asarray(info["phase_2"]["all_chains_info"], np.float64)[num_draws:]
        return Restart(np.swapaxes(draws, 0, 1), reduce(Seconds.plus, compilation))

    def stream(key: Any) -> Iterator[Restart]:
        num_draws = 20
        while True:
            yield run(key, num_draws)
            num_draws *= 4

    return stream


def nutpie_stream(backend: str, low_rank: bool = False) -> Callable[[Model, Data], Stream]:
    """nutpie with its defaults for a PyMC model: 4 chains of 400 + 1000.

    `low_rank` chooses its metric with a few learned directions instead of a diagonal one.
    """
    options = {"gradient_backend": "jax"} if backend == "jax" else {}

    def start(model: Model, data: Data) -> Stream:
        import nutpie

        import ladder_pymc

        compiled: list[Any] = []

        def stream(key: Any) -> Iterator[Restart]:
            seed = int(jax.random.randint(key, (), 0, 2**30))
            # The cold call compiles; nutpie's compiled model is reused by the warm one.
            if not compiled:
                program = ladder_pymc.MODELS[model.name](**data)
                compiled.append(nutpie.compile_pymc_model(program, backend=backend, **options))
            num_draws = 1000
            while True:
                found = nutpie.sample(
                    compiled[0],
                    draws=num_draws,
                    chains=4,
                    seed=seed,
                    progress_bar=False,
                    low_rank_modified_mass_matrix=low_rank,
                )
                posterior = found.posterior
                sites = {name: posterior[name].values for name in model.transforms(data)}
                yield Restart(model.unconstrain(data, sites))
                num_draws *= 4

        return stream

    return start


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
    "NUTS": ("vectorized", "parallel"),
    "MAMS": ("mams-2", "mams-10"),
    "LAPS": ("laps",),
    "nutpie": ("nutpie-numba", "nutpie-jax", "nutpie-low-rank"),
}
VARIANTS: dict[str, Callable[[Model, Data], Stream]] = {
    "vectorized": nuts_stream("vectorized"),
    "parallel": nuts_stream("parallel"),
    "mams-2": mams_stream(2.0),
    "mams-10": mams_stream(10.0),
    "laps": laps_stream,
    "nutpie-numba": nutpie_stream("numba"),
    "nutpie-jax": nutpie_stream("jax"),
    "nutpie-low-rank": nutpie_stream("numba", low_rank=True),
}
# What the cells of each method depend on.
PACKAGES: dict[str, tuple[str, ...]] = {
    "NUTS": ("jax", "numpyro"),
    "MAMS": ("jax", "blackjax"),
    "LAPS": ("jax", "blackjax"),
    "nutpie": ("jax", "nutpie", "pymc"),
}
