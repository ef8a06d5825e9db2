"""The gradient of a state-space likelihood: relbo against plain JAX and other libraries.

- A dynamic linear model of 14 states (local linear trend and 12 seasons) over 120 steps: the
  gradient with respect to four log standard deviations.
- A hidden Markov model of 5 states and 5 symbols over 1000 steps: the gradient with respect to
  the logits of both matrices.

"plain" is the textbook algorithm in a `jax.lax.scan`, differentiated by JAX; "plain, remat"
also has `jax.checkpoint` around each step. They show what relbo's own algorithms gain. dynamax,
cuthbert and torch, of the `bench` group, are left out if they are not installed. PyTorch runs a
loop over time without compilation.

Every implementation gets the same matrices in float64, and their log likelihoods and gradients
are compared before anything is timed. The table has ratios to relbo's time, each the median of
repeated runs in turns. A call of a compiled function has an overhead, which an optimiser that
is compiled as a whole does not have: the second column is the gradient in a compiled loop (for
PyTorch, the plain loop again). The third column is 64 parameters at once (`jax.vmap`), as
`relbo.infer` needs them.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import relbo.statespace
from _common import argument_parser, write_results

PERIOD, NUM_DLM_STEPS = 12, 120
NUM_STATES, NUM_HMM_STEPS = 5, 1000
BATCH = 64
NUM_LOOPS = 20
CALLS_PER_TURN = 10
SECONDS_EACH = 3.0

Fn = Callable[..., Any]


class LinearMatrices(NamedTuple):
    """The matrices of a model whose first state is one step after N(0, I)."""

    transition: Any
    noise_root: Any
    observation: Any
    observation_scale: Any


def linear_matrices(theta: jax.Array) -> LinearMatrices:
    """Returns a local linear trend with seasons, from four log standard deviations."""
    level, slope, season, noise = jnp.exp(theta)
    size = 2 + PERIOD
    transition = jnp.zeros((size, size)).at[:2, :2].set(jnp.array([[1.0, 1.0], [0.0, 1.0]]))
    transition = transition.at[2:, 2:].set(jnp.roll(jnp.eye(PERIOD), 1, axis=1))
    root = jnp.zeros((size, size)).at[0, 0].set(level).at[1, 1].set(slope)
    root = root.at[2:, 2].set(season * (jnp.eye(PERIOD)[-1] - 1.0 / PERIOD))
    observation = jnp.zeros((1, size)).at[0, 0].set(1.0).at[0, 2].set(1.0)
    return LinearMatrices(transition, root, observation, noise)


def relbo_dlm(series: jax.Array) -> Fn:
    def value(theta: jax.Array) -> jax.Array:
        model = linear_matrices(theta)
        covariance = model.noise_root @ model.noise_root.T
        size = len(covariance)
        return relbo.statespace.LinearGaussian(
            jnp.zeros(size),
            model.transition @ model.transition.T + covariance,
            model.transition,
            covariance,
            model.observation,
            model.observation_scale[None] ** 2,
        ).log_likelihood(series)

    return value


def plain_dlm(series: jax.Array, *, remat: bool = False) -> Fn:
    def value(theta: jax.Array) -> jax.Array:
        model = linear_matrices(theta)
        noise = model.noise_root @ model.noise_root.T
        transition, row = model.transition, model.observation[0]

        def step(carry: tuple, seen: jax.Array) -> tuple[tuple, jax.Array]:
            mean, covariance = carry
            crossing = covariance @ row
            variance = row @ crossing + model.observation_scale**2
            surprise = seen - row @ mean
            gain = crossing / variance
            mean = mean + gain * surprise
            covariance = covariance - jnp.outer(gain, crossing)
            term = -0.5 * (surprise**2 / variance + jnp.log(2 * jnp.pi * variance))
            return (transition @ mean, transition @ covariance @ transition.T + noise), term

        start = jnp.zeros(len(noise)), transition @ transition.T + noise
        step = jax.checkpoint(step, prevent_cse=False) if remat else step
        return jnp.sum(jax.lax.scan(step, start, series)[1])

    return value


def dynamax_dlm(series: jax.Array) -> Fn:
    from dynamax.linear_gaussian_ssm.inference import lgssm_filter, make_lgssm_params

    def value(theta: jax.Array) -> jax.Array:
        model = linear_matrices(theta)
        covariance = model.noise_root @ model.noise_root.T
        params = make_lgssm_params(
            jnp.zeros(len(covariance)),
            model.transition @ model.transition.T + covariance,
            model.transition,
            covariance,
            model.observation,
            model.observation_scale[None, None] ** 2,
        )
        return lgssm_filter(params, series[:, None]).marginal_loglik

    return value


def cuthbert_dlm(series: jax.Array) -> Fn:
    import cuthbert
    from cuthbert.gaussian import kalman

    def value(theta: jax.Array) -> jax.Array:
        model = linear_matrices(theta)
        size = len(model.transition)
        filtering = kalman.build_filter(
            jnp.zeros(size),
            jnp.eye(size),
            lambda seen: (model.transition, jnp.zeros(size), model.noise_root),
            lambda seen: (
                model.observation, jnp.zeros(1), model.observation_scale[None, None], seen
            ),
        )  # fmt: skip
        states = cuthbert.filter(filtering, series[:, None], filtering.init_prepare())
        return states.log_normalizing_constant[-1]

    return value


def torch_dlm(series: np.ndarray) -> Fn:
    import torch

    observed = torch.tensor(series)

    def value(theta: Any) -> Any:
        level, slope, season, noise = torch.exp(theta)
        size = 2 + PERIOD
        transition = torch.zeros(size, size, dtype=theta.dtype)
        transition[:2, :2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        transition[2:, 2:] = torch.roll(torch.eye(PERIOD), 1, dims=1)
        trend = torch.diag(torch.stack([level, slope]) ** 2)
        direction = torch.eye(PERIOD, dtype=theta.dtype)[-1] - 1.0 / PERIOD
        covariance = torch.block_diag(trend, season**2 * torch.outer(direction, direction))
        row = torch.zeros(size, dtype=theta.dtype)
        row[0] = row[2] = 1.0
        mean = torch.zeros(size, dtype=theta.dtype)
        state = torch.eye(size, dtype=theta.dtype)
        total = torch.zeros((), dtype=theta.dtype)
        for seen in observed:
            mean = transition @ mean
            state = transition @ state @ transition.T + covariance
            crossing = state @ row
            variance = row @ crossing + noise**2
            surprise = seen - row @ mean
            total = total - 0.5 * (
                surprise**2 / variance + torch.log(variance) + math.log(2 * math.pi)
            )
            gain = crossing / variance
            mean = mean + gain * surprise
            state = state - torch.outer(gain, crossing)
        return total

    return value


def relbo_hmm(series: jax.Array) -> Fn:
    def value(theta: tuple) -> jax.Array:
        transition, emission = (jax.nn.softmax(logits) for logits in theta)
        initial = jnp.full(NUM_STATES, 1.0 / NUM_STATES) @ transition
        return relbo.statespace.HiddenMarkov(initial, transition, emission).log_likelihood(
            series
        )

    return value


def plain_hmm(series: jax.Array, *, remat: bool = False) -> Fn:
    def value(theta: tuple) -> jax.Array:
        log_transition, log_emission = (jax.nn.log_softmax(logits) for logits in theta)

        def step(log_state: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
            moved = jax.nn.logsumexp(log_state[:, None] + log_transition, axis=0)
            joint = moved + log_emission[:, seen]
            term = jax.nn.logsumexp(joint)
            return joint - term, term

        step = jax.checkpoint(step, prevent_cse=False) if remat else step
        start = jnp.full(NUM_STATES, -math.log(NUM_STATES))
        return jnp.sum(jax.lax.scan(step, start, series)[1])

    return value


def dynamax_hmm(series: jax.Array) -> Fn:
    from dynamax.hidden_markov_model.inference import hmm_filter

    def value(theta: tuple) -> jax.Array:
        transition, emission = (jax.nn.softmax(logits) for logits in theta)
        initial = jnp.full(NUM_STATES, 1.0 / NUM_STATES) @ transition
        return hmm_filter(initial, transition, jnp.log(emission).T[series]).marginal_loglik

    return value


def cuthbert_hmm(series: jax.Array) -> Fn:
    import cuthbert
    from cuthbert.discrete import filter as discrete

    def value(theta: tuple) -> jax.Array:
        transition, emission = (jax.nn.softmax(logits) for logits in theta)
        filtering = discrete.build_filter(
            jnp.full(NUM_STATES, 1.0 / NUM_STATES),
            lambda seen: transition,
            lambda seen: jnp.log(emission)[:, seen],
        )
        states = cuthbert.filter(filtering, series, filtering.init_prepare())
        return states.log_normalizing_constant[-1]

    return value


def torch_hmm(series: np.ndarray) -> Fn:
    import torch

    def value(theta: Any) -> Any:
        log_transition, log_emission = (torch.log_softmax(logits, -1) for logits in theta)
        log_state = torch.full((NUM_STATES,), -math.log(NUM_STATES), dtype=theta[0].dtype)
        for seen in series:
            log_state = torch.logsumexp(log_state[:, None] + log_transition, 0)
            log_state = log_state + log_emission[:, seen]
        return torch.logsumexp(log_state, 0)

    return value


JAX_PEERS = {
    "dlm": {
        "relbo": relbo_dlm,
        "plain": plain_dlm,
        "plain, remat": partial(plain_dlm, remat=True),
        "dynamax": dynamax_dlm,
        "cuthbert": cuthbert_dlm,
    },
    "hmm": {
        "relbo": relbo_hmm,
        "plain": plain_hmm,
        "plain, remat": partial(plain_hmm, remat=True),
        "dynamax": dynamax_hmm,
        "cuthbert": cuthbert_hmm,
    },
}
TORCH_PEERS = {"dlm": torch_dlm, "hmm": torch_hmm}
PACKAGES = ("dynamax", "cuthbert", "torch")


def is_available(peer: str) -> bool:
    return peer not in PACKAGES or importlib.util.find_spec(peer) is not None


def problem(name: str) -> tuple[np.ndarray, Any]:
    """Returns a series and the parameters at which the gradient is taken."""
    rng = np.random.default_rng(0)
    if name == "dlm":
        season = np.sin(2 * np.pi * np.arange(NUM_DLM_STEPS) / PERIOD)
        trend = np.cumsum(0.1 * rng.normal(size=NUM_DLM_STEPS))
        series = trend + season + 0.3 * rng.normal(size=NUM_DLM_STEPS)
        return series, np.log(np.array([0.1, 0.05, 0.1, 0.3]))
    logits = tuple(rng.normal(size=(NUM_STATES, NUM_STATES)) for _ in range(2))
    return rng.integers(0, NUM_STATES, NUM_HMM_STEPS), logits


def main() -> None:
    parser = argument_parser(__doc__)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    missing = [name for name in PACKAGES if not is_available(name)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}")
    seconds = 0.3 if args.quick else SECONDS_EACH
    results = {name: compare(name, seconds) for name in JAX_PEERS}
    write_results("state_space", results, quick=args.quick, seconds=time.perf_counter() - start)


def compare(name: str, seconds: float) -> dict[str, Any]:
    series, theta = problem(name)
    theta = jax.tree.map(jnp.asarray, theta)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * BATCH), theta)
    runs, loops, batched, values, compiling = {}, {}, {}, {}, {}
    peers = {peer: make for peer, make in JAX_PEERS[name].items() if is_available(peer)}
    for peer, make in peers.items():
        gradient = jax.value_and_grad(make(jnp.asarray(series)))
        start = time.perf_counter()
        one = jax.jit(gradient).lower(theta).compile()
        compiling[peer] = time.perf_counter() - start
        together = jax.jit(jax.vmap(gradient)).lower(many).compile()
        descent = jax.jit(partial(descend, gradient)).lower(theta).compile()
        values[peer] = one(theta)
        runs[peer] = lambda one=one: jax.block_until_ready(one(theta))
        loops[peer] = lambda descent=descent: jax.block_until_ready(descent(theta))
        batched[peer] = lambda together=together: jax.block_until_ready(together(many))
    if is_available("torch"):
        runs["torch"], values["torch"] = torch_run(name, series, theta)
    disagreement = check(values)
    times = in_turns(runs, seconds)
    in_loop = {peer: taken / NUM_LOOPS for peer, taken in in_turns(loops, seconds).items()}
    columns = {
        "one gradient": times,
        "in a loop": times | in_loop,
        f"{BATCH} at once": in_turns(batched, seconds),
        "compilation": compiling,
    }
    print(f"\n{name}: log likelihood {values['relbo'][0]:.6f}, disagreement {disagreement:.1e}")
    print(f"{'':14}" + "".join(f"{column:>16}" for column in columns) + "  / relbo's")
    for peer in runs:
        ratios = [d[peer] / d["relbo"] if peer in d else None for d in columns.values()]
        print(f"{peer:14}" + "".join(f"{'' if r is None else f'{r:.2f}':>16}" for r in ratios))
    return {"disagreement": disagreement, "seconds": columns}


def descend(gradient: Fn, theta: Any) -> Any:
    """Takes tiny steps, so that all gradients are nearly equal."""

    def step(_: int, theta: Any) -> Any:
        return jax.tree.map(lambda x, slope: x + 1e-12 * slope, theta, gradient(theta)[1])

    return jax.lax.fori_loop(0, NUM_LOOPS, step, theta)


def torch_run(name: str, series: np.ndarray, theta: Any) -> tuple[Fn, tuple[float, Any]]:
    import torch

    value = TORCH_PEERS[name](series)
    leaves = [
        torch.tensor(np.array(leaf), requires_grad=True) for leaf in jax.tree.leaves(theta)
    ]

    def run() -> tuple[float, Any]:
        for leaf in leaves:
            leaf.grad = None
        total = value(leaves[0] if name == "dlm" else leaves)
        total.backward()
        return total.item(), [np.asarray(leaf.grad) for leaf in leaves]

    return run, run()


def check(values: dict[str, tuple]) -> float:
    """Returns the largest relative difference of any value or gradient from relbo's."""
    ours = [np.asarray(leaf) for leaf in jax.tree.leaves(values["relbo"])]
    worst = 0.0
    for other in values.values():
        for mine, theirs in zip(ours, jax.tree.leaves(other), strict=True):
            difference = np.max(np.abs(mine - np.asarray(theirs))) / np.max(np.abs(mine))
            worst = max(worst, float(difference))
    if worst > 1e-6:
        raise SystemExit(f"the implementations differ by {worst:.1e}: nothing is timed")
    return worst


def in_turns(runs: dict[str, Fn], seconds: float) -> dict[str, float]:
    """Returns the median time of each run; they take turns, to share the machine's load."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or min(map(len, taken.values())) < 5:
        for name, run in runs.items():
            # Once without timing: the caches still hold the data of the previous run.
            run()
            for _ in range(CALLS_PER_TURN):
                start = time.perf_counter()
                run()
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


if __name__ == "__main__":
    main()
