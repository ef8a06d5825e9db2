"""Autoencoders on binarized MNIST (paper, section 5.3)."""

from pathlib import Path

from relbo.data import binarized_mnist
from relbo.experiments import Options, Outcome
from relbo.experiments._autoencoders import Dataset, run_dataset
from relbo.experiments._autoencoders_story import autoencoder_story

DATASET = Dataset(
    experiment="vae-mnist",
    load=binarized_mnist,
    paper_epochs=20,
    paper={"VAE": -100.91, "VIS-0-10": -96.16, "VIS-5-10": -82.74},
)
STORY = autoencoder_story("handwritten digits")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    return run_dataset(DATASET, directory, options)
