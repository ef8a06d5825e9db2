"""Autoencoders on Fashion-MNIST (paper, section 5.3)."""

from pathlib import Path

from relbo.data import fashion_mnist
from relbo.experiments import Options, Outcome
from relbo.experiments._autoencoders import Dataset, run_dataset
from relbo.experiments._autoencoders_story import autoencoder_story

DATASET = Dataset(
    experiment="vae-fashion",
    load=fashion_mnist,
    paper_epochs=15,
    paper={"VAE": -125.57, "VIS-0-10": -120.53, "VIS-5-10": -105.08},
)
STORY = autoencoder_story("clothes")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    return run_dataset(DATASET, directory, options)
