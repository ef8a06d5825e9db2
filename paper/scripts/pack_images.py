"""Writes the image files of the package from the idx files of MNIST and Fashion-MNIST.

    python paper/scripts/pack_images.py --mnist DIR --fashion DIR [--out DIR]

Each directory holds the four idx files, compressed or not. The printed checksums are those in
`relbo_paper/data/images.py`.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np

from relbo_paper.data import ImageSplits, binarized_mnist, fashion_mnist
from relbo_paper.data.binary import pack

PACKAGE_DATA = Path(__file__).resolve().parent.parent / "src" / "relbo_paper" / "data"


def write_packed(path: Path, splits: ImageSplits) -> None:
    """Writes all images and labels to one compressed file."""
    content = pack(
        np.concatenate([part.images for part in splits]),
        np.concatenate([part.labels for part in splits]),
    )
    path.write_bytes(content)
    print(f"{path.name}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the image files of the package.")
    parser.add_argument("--mnist", type=Path, required=True, metavar="DIR")
    parser.add_argument("--fashion", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=PACKAGE_DATA, metavar="DIR")
    arguments = parser.parse_args()
    write_packed(arguments.out / "binarized_mnist.xz", binarized_mnist(arguments.mnist))
    write_packed(arguments.out / "fashion_mnist.xz", fashion_mnist(arguments.fashion))


if __name__ == "__main__":
    main()
