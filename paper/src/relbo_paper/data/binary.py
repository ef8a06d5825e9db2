"""Binarizes grey images, and packs and unpacks binary ones."""

import lzma

import numpy as np

NUM_PIXELS = 784
PACKED_WIDTH = NUM_PIXELS // 8
SEED = 20200
"""The seed of the package's static binarization."""

_ROWS_AT_ONCE = 1000


def draw_binary(grey: np.ndarray, seed: int = SEED) -> np.ndarray:
    """Draws each pixel from a Bernoulli with its grey level, as uint8 `[n, 784]`.

    It uses NumPy's `RandomState`, whose streams never change, image by image: the same grey
    images give the same draw in every version.

    Args:
        grey: levels from 0 to 255, `[n, 784]`.
        seed: the seed of the draw.
    """
    uniforms = np.random.RandomState(seed)
    pieces = [
        uniforms.random_sample(rows.shape) < rows / 255.0
        for rows in np.split(grey, range(_ROWS_AT_ONCE, len(grey), _ROWS_AT_ONCE))
    ]
    return np.concatenate(pieces).astype(np.uint8)


def threshold(grey: np.ndarray) -> np.ndarray:
    """Returns one where the grey level is above one half, as uint8."""
    return (grey > 127).astype(np.uint8)


def pack(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Compresses binary images with their labels."""
    # All filter options are given, so that the same images give the same bytes everywhere.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 0}]
    content = labels.astype(np.uint8).tobytes() + np.packbits(images, axis=1).tobytes()
    return lzma.compress(content, filters=filters)


def unpack(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Inverts `pack`: returns images `[n, 784]` and labels `[n]`."""
    flat = np.frombuffer(lzma.decompress(content), np.uint8)
    number = len(flat) // (PACKED_WIDTH + 1)
    packed = flat[number:].reshape(number, PACKED_WIDTH)
    return unpack_bits(packed), flat[:number]


def unpack_bits(packed: np.ndarray) -> np.ndarray:
    """Returns images `[n, 784]` from bytes `[n, 98]`."""
    return np.unpackbits(packed, axis=1, count=NUM_PIXELS)
