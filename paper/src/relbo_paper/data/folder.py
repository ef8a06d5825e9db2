"""Reads images from the user's own files."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relbo_paper.data.binary import NUM_PIXELS, PACKED_WIDTH, unpack_bits
from relbo_paper.data.idx import read_idx
from relbo_paper.data.splits import ImageSplit, ImageSplits, split_images

_PARTS = ("train", "valid", "test")
_IDX_PARTS = ("train", "t10k")


def read_folder(
    directory: Path, names: tuple[str, ...], binarize: Callable[[np.ndarray], np.ndarray]
) -> ImageSplits:
    """Reads images from an npz file or four idx files.

    Args:
        directory: the directory of the files, or of a folder with one of the `names`.
        names: possible names of the npz file or of the folder.
        binarize: turns the grey levels of idx files into zeros and ones.
    """
    if not directory.is_dir():
        raise ValueError(f"directory: {directory} is not a directory")
    for name in names:
        if (path := directory / f"{name}.npz").exists():
            return _read_npz(path)
    for folder in (directory, *(directory / name for name in names)):
        if _idx_path(folder, "train-images-idx3-ubyte") is not None:
            return _read_idx_files(folder, binarize)
    raise ValueError(
        f"directory: {directory} has neither {' nor '.join(f'{n}.npz' for n in names)} nor "
        "train-images-idx3-ubyte (or .gz), nor a folder with that file called "
        f"{' or '.join(names)}"
    )


def _read_idx_files(folder: Path, binarize: Callable[[np.ndarray], np.ndarray]) -> ImageSplits:
    found = [_read_idx_part(folder, part) for part in _IDX_PARTS]
    grey = np.concatenate([images for images, _ in found])
    labels = np.concatenate([labels for _, labels in found])
    return split_images(binarize(grey), labels, num_test=len(found[1][1]))


def _read_idx_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (
        read_idx(_needed(folder, f"{part}-{kind}"))
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    where = folder / part
    if images.ndim < 2 or int(np.prod(images.shape[1:])) != NUM_PIXELS:
        raise ValueError(
            f"{where}-images: expected images of {NUM_PIXELS} pixels, got {images.shape}"
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{where}-labels: expected {len(images)} labels, got {labels.shape}")
    return images.reshape(len(images), NUM_PIXELS), labels


def _needed(folder: Path, name: str) -> Path:
    path = _idx_path(folder, name)
    if path is None:
        raise ValueError(f"{folder / name}: the file does not exist, with or without .gz")
    return path


def _idx_path(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.exists()), None)


def _read_npz(path: Path) -> ImageSplits:
    try:
        # Opened here, because NumPy does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            needed = [name for part in _PARTS for name in (part, f"{part}_labels")]
            missing = [name for name in needed if name not in arrays]
            if missing:
                raise ValueError(f"{path}: the arrays {missing} are missing")
            return ImageSplits(*(_npz_part(path, arrays, part) for part in _PARTS))
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a readable npz file ({error})") from error


def _npz_part(path: Path, arrays: np.lib.npyio.NpzFile, part: str) -> ImageSplit:
    images, labels = arrays[part], arrays[f"{part}_labels"]
    if images.ndim > 2:
        images = images.reshape(len(images), -1)
    if images.ndim == 2 and images.shape[1] == PACKED_WIDTH and images.dtype == np.uint8:
        images = unpack_bits(images)
    if images.ndim != 2 or images.shape[1] != NUM_PIXELS:
        raise ValueError(
            f"{path}: '{part}' must be [n, {NUM_PIXELS}], or [n, {PACKED_WIDTH}] bytes of "
            f"packed bits, got {images.dtype}{list(arrays[part].shape)}"
        )
    if not np.all((images == 0) | (images == 1)):
        raise ValueError(f"{path}: '{part}' must contain only zeros and ones")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{path}: '{part}_labels' must contain {len(images)} labels, got "
            f"{list(labels.shape)}"
        )
    return ImageSplit(images.astype(np.uint8), labels.astype(np.uint8))
