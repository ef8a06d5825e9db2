"""Draws the picture of the README: a funnel, a normal guide, and a refined one.

    python examples/funnel.py [--out funnel.png]

It prints the ELBO and the standard deviation of z1 (the truth is 0 and 1.35) of both guides.
"""

import argparse

import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import relbo

SD = 1.35
NUM_DRAWS = 3000
ELBO = Trace_ELBO(num_particles=20_000)


def funnel():
    z1 = numpyro.sample("z1", dist.Normal(0.0, SD))
    numpyro.sample("z2", dist.Normal(0.0, jnp.exp(z1)))


def trained(guide):
    """Returns draws of a guide after a fit, and its ELBO."""
    fitted = relbo.fit(0, funnel, guide=guide, progress=False)
    draws = guide.sample_posterior(jr.key(1), fitted.params, sample_shape=(NUM_DRAWS,))
    elbo = -float(ELBO.loss(jr.key(2), fitted.params, funnel, guide))
    return np.stack([draws["z1"], draws["z2"]]), elbo


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="funnel.png")
    out = parser.parse_args().out
    rng = np.random.default_rng(0)
    z1 = SD * rng.normal(size=NUM_DRAWS)
    exact = np.stack([z1, np.exp(z1) * rng.normal(size=NUM_DRAWS)])
    panels = [("the posterior", exact, 0.0)]
    for name, guide in (
        ("AutoNormal", AutoNormal(funnel)),
        ("AutoRefined, 8 steps", relbo.AutoRefined(funnel)),
    ):
        draws, elbo = trained(guide)
        panels.append((name, draws, elbo))
        print(f"{name}: ELBO {elbo:.3f}, sd of z1 {draws[0].std():.2f}")
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), sharex=True, sharey=True)
    colours = ("#555555", "#c44e52", "#3b6fb6")
    for axis, colour, (name, draws, elbo) in zip(axes, colours, panels, strict=True):
        axis.scatter(draws[1], draws[0], s=3, alpha=0.35, color=colour, linewidths=0)
        about = "" if name == "the posterior" else f"\nELBO {elbo:.2f} (at most 0)"
        axis.set_title(name + about, fontsize=11)
        axis.set(xlim=(-8, 8), ylim=(-4.5, 4.5), xlabel="z2")
    axes[0].set_ylabel("z1")
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
