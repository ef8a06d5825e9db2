"""Compares the training of an autoencoder with a sampler inside: relbo and plain PyTorch.

One update (minibatch of 128 images, S = 5 draws, Adam) at T = 0 and at T = 5 steps of SGD that
every draw takes by itself, differentiated in full: the paper's recipe. PyTorch runs the same
algorithm, written plainly, with `create_graph=True` in the steps. Both start with the same
weights, and their losses are compared before anything is timed.

It prints ratios of median times of runs taken in turns:

- PyTorch's time over relbo's, at T = 0 and T = 5;
- the time of the matrix products alone, at the rate that XLA reaches at these shapes, over the
  time of the update;
- full over fast mode, and the update over one with the decoder frozen in the steps;
- an update of every row of the experiments' tables, with their optimiser, over that of the VAE.

It needs torch, of the `bench` group; run it on an otherwise idle machine.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import torch
from numpyro.infer import SVI, Trace_ELBO

from _common import argument_parser, write_results
from relbo import SGD, Execution, ParticleAccount, Refinement, refine
from relbo_paper.data import binarized_mnist
from relbo_paper.images.autoencoders import FULL, AutoencoderWork
from relbo_paper.images.rows import ImageRow, sound_rows
from relbo_paper.images.vae_mnist import DATASET
from relbo_paper.models import Autoencoder, autoencoder

BATCH, NUM_DRAWS, NUM_STEPS = 128, 5, 5
STEP_SIZE, LEARNING_RATE = 1e-3, 1e-3
NUM_UPDATES = 20
BARS = {"T=0": 1.2, "T=5": 1.1, "share of the product rate": 0.85, "full / fast": 2.0}

Mode = Literal["full", "fast"]
Run = Callable[[], None]


def relbo_svi(
    vae: Autoencoder, num_steps: int, *, mode: Mode = "full", freeze_model: bool = False
) -> SVI:
    guide = refine(
        vae.guide,
        vae.model,
        refinement=Refinement(
            SGD(STEP_SIZE),
            ParticleAccount(),
            num_steps=num_steps,
            mode=mode,
            anneal=False,
            space="unconstrained",
            execution=Execution(unroll=True),
        ),
        freeze_model=freeze_model,
    )
    return SVI(vae.model, guide, optax.adam(LEARNING_RATE), Trace_ELBO(NUM_DRAWS))


def relbo_updates(vae: Autoencoder, images: Any, num_steps: int, **options: Any) -> Run:
    return _updates(relbo_svi(vae, num_steps, **options), images)


def _updates(svi: SVI, images: Any) -> Run:
    """Returns a run of updates, each on its own minibatch, in one compiled loop."""
    state = svi.init(jr.key(0), images[0], num_images=50_000)

    @jax.jit
    def run(state: Any) -> Any:
        turn = lambda state, batch: svi.update(state, batch, num_images=50_000)
        return jax.lax.scan(turn, state, images)

    return lambda: jax.block_until_ready(run(state))


def row_updates(row: ImageRow, vae: Autoencoder, images: Any) -> Run:
    """Returns a run of updates of a row of the experiments, with its optimiser."""
    work = AutoencoderWork("sound", FULL, binarized_mnist(), Path(), DATASET)
    guide, loss = row.build(vae)
    return _updates(SVI(vae.model, guide, work.optimiser(row), loss), images)


class TorchLayers(torch.nn.Sequential):
    """A network with relus between its layers."""

    def __init__(self, layers: list[tuple[Any, Any]]):
        parts: list[torch.nn.Module] = []
        for weight, bias in layers:
            linear = torch.nn.Linear(*weight.shape)
            linear.weight.data = torch.from_numpy(np.array(weight.T))
            linear.bias.data = torch.from_numpy(np.array(bias))
            parts += [linear, torch.nn.ReLU()]
        super().__init__(*parts[:-1])


class TorchAutoencoder(torch.nn.Module):
    """The same model and guide; the draws are an axis before the minibatch."""

    def __init__(self, params: dict[str, Any], num_steps: int):
        super().__init__()
        encoder, decoder = params["encoder$params"], params["decoder$params"]
        first = zip(*(jnp.split(x, 2, -1) for x in _layers(encoder.first)[0]), strict=True)
        self.loc, self.scale = (
            TorchLayers([begin, *_layers(rest)])
            for begin, rest in zip(first, (encoder.loc, encoder.scale), strict=True)
        )
        self.decoder = TorchLayers(_layers(decoder.layers))
        self.log_step = torch.nn.Parameter(torch.log(torch.tensor(STEP_SIZE)))
        self.num_steps = num_steps

    def log_joint(self, z: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        logits = self.decoder(z)
        pixels = images * logits - torch.nn.functional.softplus(logits)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z)
        return pixels.sum(-1) + prior.sum(-1)

    def loss(self, images: torch.Tensor) -> torch.Tensor:
        scale = torch.nn.functional.softplus(self.scale(images))
        q = torch.distributions.Normal(self.loc(images), scale)
        z = q.rsample((NUM_DRAWS,))
        log_q = q.log_prob(z).sum(-1)
        for _ in range(self.num_steps):
            value = self.log_joint(z, images).sum()
            (gradient,) = torch.autograd.grad(value, z, create_graph=True)
            z = z + self.log_step.exp() * gradient
        return -(self.log_joint(z, images) - log_q).mean(0).sum()


def _layers(network: Any) -> list[tuple[Any, Any]]:
    return list(zip(network.weights, network.biases, strict=True))


def torch_updates(model: TorchAutoencoder, images: Any) -> Run:
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    batches = [torch.from_numpy(np.array(batch, dtype=np.float32)) for batch in images]

    def run() -> None:
        for batch in batches:
            optimiser.zero_grad(set_to_none=True)
            model.loss(batch).backward()
            optimiser.step()

    return run


def product_rate(number: int) -> float:
    """Measures the operations per second of XLA's matrix products at the decoder's shapes."""
    shapes = [(number, 200, 784), (number, 784, 200), (200, number, 784)]
    return statistics.mean(_rate_of(*shape) for shape in shapes)


def _rate_of(rows: int, inner: int, columns: int, repeats: int = 100) -> float:
    left, right = jnp.ones((rows, inner)), jnp.full((inner, columns), 1e-4)

    @jax.jit
    def run(left: jax.Array, right: jax.Array) -> jax.Array:
        # Each product depends on the previous one, so that none is optimised away.
        turn = lambda _, total: total + (left + total[0, 0]) @ right
        return jax.lax.fori_loop(0, repeats, turn, jnp.zeros((rows, columns)))

    seconds = _median_seconds({"": lambda: jax.block_until_ready(run(left, right))}, 5)[""]
    return 2.0 * rows * inner * columns * repeats / seconds


def needed_operations(num_steps: int) -> float:
    """Returns the operations of one update in matrix products alone.

    There are six decoder passes per step and three at the end.
    """
    decoder = 2 * (10 * 200 + 200 * 200 + 200 * 784) * BATCH * NUM_DRAWS
    encoder = 2 * 2 * (784 * 200 + 200 * 200 + 200 * 10) * BATCH
    # The images need no gradient: the first layers take two passes, the others three.
    backward = 3 * encoder - 2 * 2 * 784 * 200 * BATCH
    return decoder * (6 * num_steps + 3) + backward


def _median_seconds(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Measures the median time of each run, taken in turns."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in times.items()}


def check_losses(vae: Autoencoder, images: Any, params: dict[str, Any]) -> dict[str, float]:
    """Returns the ratio of both losses, on the same images with different draws."""
    found = {}
    for num_steps in (0, NUM_STEPS):
        svi = relbo_svi(vae, num_steps)
        svi.init(jr.key(0), images[0])
        model = TorchAutoencoder(params, num_steps)
        guide_params = {**params, "refined_step_size": jnp.array(STEP_SIZE)}
        ours = svi.loss.loss(jr.key(1), guide_params, vae.model, svi.guide, images[0])
        batch = torch.from_numpy(np.array(images[0], dtype=np.float32))
        theirs = statistics.mean(model.loss(batch).item() for _ in range(5))
        found[f"T={num_steps}"] = float(ours) / theirs
    return found


def main() -> None:
    parser = argument_parser(__doc__)
    args = parser.parse_args()
    begin = time.perf_counter()
    repeats = 3 if args.quick else 9
    vae = autoencoder()
    number = BATCH * NUM_UPDATES
    images = jnp.asarray(binarized_mnist().train.images[:number]).reshape(-1, BATCH, 784)
    svi = relbo_svi(vae, 0)
    params = svi.get_params(svi.init(jr.key(0), images[0]))
    losses = check_losses(vae, images, params)
    print("loss of relbo / loss of PyTorch, same weights:", losses)
    runs: dict[str, Run] = {}
    for num_steps in (0, NUM_STEPS):
        runs[f"relbo T={num_steps}"] = relbo_updates(vae, images, num_steps)
        model = TorchAutoencoder(params, num_steps)
        runs[f"PyTorch T={num_steps}"] = torch_updates(model, images)
    runs["fast"] = relbo_updates(vae, images, NUM_STEPS, mode="fast")
    runs["frozen"] = relbo_updates(vae, images, NUM_STEPS, freeze_model=True)
    seconds = _median_seconds(runs, repeats)
    full = seconds[f"relbo T={NUM_STEPS}"]
    needed = needed_operations(NUM_STEPS) / product_rate(BATCH * NUM_DRAWS)
    ratios = {
        "T=0": seconds["PyTorch T=0"] / seconds["relbo T=0"],
        "T=5": seconds["PyTorch T=5"] / full,
        "share of the product rate": needed * NUM_UPDATES / full,
        "full / fast": full / seconds["fast"],
        "full / frozen decoder": full / seconds["frozen"],
    }
    for name, ratio in ratios.items():
        bar = f"(bar {BARS[name]})" if name in BARS else ""
        print(f"{name:28s} {ratio:5.2f} {bar}")
    results = {"ratios": ratios, "bars": BARS, "loss ratio": losses}
    if not args.quick:
        rows = [row for row in sound_rows() if row.length == 1]
        each = {row.name: row_updates(row, vae, images) for row in rows}
        of_rows = _median_seconds(each, 3)
        results["update, times the VAE's"] = {
            name: taken / of_rows["VAE"] for name, taken in of_rows.items()
        }
        for name, ratio in results["update, times the VAE's"].items():
            print(f"{ratio:6.2f} {name}")
    write_results(
        "autoencoders", results, quick=args.quick, seconds=time.perf_counter() - begin
    )


if __name__ == "__main__":
    main()
