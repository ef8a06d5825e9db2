"""Autoencoders on Fashion-MNIST (paper, section 5.3)."""

from pathlib import Path

from relbo_paper.data import fashion_mnist
from relbo_paper.harness.experiments import Options, Outcome
from relbo_paper.images.autoencoders import ImageDataset, run_dataset
from relbo_paper.images.claims import autoencoder_claims

DATASET = ImageDataset(
    experiment="vae-fashion",
    load=fashion_mnist,
    paper_epochs=15,
    paper={"VAE": -125.57, "VIS-0-10": -120.53, "VIS-5-10": -105.08},
)
CLAIMS = autoencoder_claims("clothes")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    return run_dataset(DATASET, directory, options)
