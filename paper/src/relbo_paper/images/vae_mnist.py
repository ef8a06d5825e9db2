"""Autoencoders on binarized MNIST (paper, section 5.3)."""

from pathlib import Path

from relbo_paper.data import binarized_mnist
from relbo_paper.harness.experiments import Options, Outcome
from relbo_paper.images.autoencoders import ImageDataset, run_dataset
from relbo_paper.images.claims import autoencoder_claims

DATASET = ImageDataset(
    experiment="vae-mnist",
    load=binarized_mnist,
    paper_epochs=20,
    paper={"VAE": -100.91, "VIS-0-10": -96.16, "VIS-5-10": -82.74},
)
CLAIMS = autoencoder_claims("handwritten digits")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    return run_dataset(DATASET, directory, options)
