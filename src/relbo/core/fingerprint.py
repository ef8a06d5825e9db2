"""Fingerprints identify a run, so that the files of another run are not continued."""

import hashlib
from typing import Any

import jax
import jax.random as jr
import numpy as np

from relbo.core.random import is_typed_key

Fingerprint = dict[str, Any]
"""A description of a run that can be written as JSON."""


def digest(tree: Any) -> str:
    """Computes a short hash of the contents of arrays."""
    found = hashlib.sha256()
    for leaf in map(plain_array, jax.tree.leaves(tree)):
        found.update(f"{leaf.dtype}{leaf.shape}".encode())
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()[:16]


def plain_array(leaf: Any) -> np.ndarray:
    """Returns an array as a NumPy one; of random keys, their words."""
    return np.asarray(jr.key_data(leaf) if is_typed_key(leaf) else leaf)


def name_of(thing: Any) -> str:
    """Returns the name of a function, or that of the class of an object."""
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def differences(ours: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Describes where two fingerprints differ."""
    found = []
    for name in ours:
        one, other = ours[name], theirs.get(name)
        if not (isinstance(one, dict) and isinstance(other, dict)):
            one, other = {"": one}, {"": other}
        found += [
            f"{name} {part}".strip() + f": {other.get(part)} there, {one.get(part)} here"
            for part in {**one, **other}
            if one.get(part) != other.get(part)
        ]
    return found
