"""Reads the idx format of MNIST and Fashion-MNIST."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

_BYTES = 8
"""The code of unsigned bytes, the only type that images and labels have."""


def read_idx(path: Path) -> np.ndarray:
    """Reads an array of unsigned bytes from an idx file, with or without gzip.

    Raises:
        ValueError: if the file is not valid; the message names the file and the problem.
    """
    content = _content(path)
    zeros, kind, num_axes = content[:2], content[2:3], content[3:4]
    if zeros != b"\0\0" or kind != bytes([_BYTES]) or not num_axes:
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    start = 4 + 4 * num_axes[0]
    if len(content) < start:
        raise ValueError(f"{path}: the file ends within its header")
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path}: the file is too short or too long: its header says {shape}, but "
            f"{len(content) - start} entries follow"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except OSError as error:
        # For a file that is not gzip, the error has no number and no `strerror`.
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path}: the compressed file is damaged ({error})") from error
