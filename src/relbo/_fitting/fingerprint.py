"""What tells one run from another: compared before a checkpoint is believed."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from relbo._fitting.arguments import digest, plain_key

Fingerprint = dict[str, Any]


def describe(thing: Any) -> str:
    """A name that is the same in the next process."""
    if hasattr(thing, "__qualname__"):
        return thing.__qualname__
    return type(thing).__qualname__


def describe_shapes(tree: Any) -> dict[str, str]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _shape(leaf)
        for path, leaf in paths
    }


def _shape(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return re.sub(r" at 0x[0-9a-f]+", "", repr(leaf))  # an address is never the same again
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def describe_key(key: Any) -> str:
    words = np.ravel(np.asarray(plain_key(key)))
    return f"{jax.random.key_impl(key)}:{','.join(map(str, words))}"


def describe_program(closed: Any) -> str:
    """A short name for a traced computation: its operations, literals and constants.

    Model, guide, loss and optimiser are all in it. The order of operations does not count,
    since it may differ from process to process where Python goes through a set.
    """
    return hashlib.sha256("\n".join(sorted(_operations(closed))).encode()).hexdigest()[:16]


def _operations(program: Any) -> Iterator[str]:
    if isinstance(program, jax_core.ClosedJaxpr):
        yield from (
            f"constant {digest([const])}" for const in program.consts if _is_array(const)
        )
        program = program.jaxpr
    for equation in program.eqns:
        inputs = [
            repr(np.asarray(var.val).tolist())
            if isinstance(var, jax_core.Literal)
            else str(var.aval)
            for var in equation.invars
        ]
        outputs = [str(var.aval) for var in equation.outvars]
        yield f"{equation.primitive.name} {inputs} {outputs}"
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(value):
                yield from _operations(value)


def _is_program(value: Any) -> bool:
    return isinstance(value, jax_core.ClosedJaxpr | jax_core.Jaxpr)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray) and not jnp.issubdtype(
        value.dtype, jax.dtypes.prng_key
    )


def differences(ours: Fingerprint, theirs: Fingerprint) -> list[str]:
    """What differs, in words."""
    found = []
    for name in ours:
        one, other = ours[name], theirs.get(name)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = [n for n in {**one, **other} if one.get(n) != other.get(n)]
            found += [
                f"{name} {n}: {other.get(n, 'none')} there, {one.get(n, 'none')} here"
                for n in names
            ]
        else:
            found.append(f"{name}: {other} there, {one} here")
    return found
