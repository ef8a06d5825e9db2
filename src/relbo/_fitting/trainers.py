"""Trainers that are kept, so that a second fit compiles nothing."""

import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from numpyro.infer.elbo import ELBO

from relbo._fitting.arguments import Layout, shapes_of
from relbo._fitting.trainer import Start, Trainer
from relbo._mesh import Spread
from relbo._target import _DATA_NEEDED

MAX_TRAINERS = 8

_trainers: OrderedDict[Any, Trainer] = OrderedDict()


def trainer_for(
    keys: PRNGKeyArray,
    make_guide: Callable[[], Any],
    *,
    model: Any,
    guide: Any,
    loss: Any,
    optimiser: Any,
    layout: Layout,
    arrays: tuple,
    num_particles: int | None,
    num_seeds: int,
    spread: Spread | None,
) -> tuple[Trainer, tuple, Start]:
    """A trainer for a model and its guide, an old one if there is one.

    Args:
        keys: one a seed, to draw initial values with.
        make_guide: makes the guide where none is given.
        model, guide, loss, optimiser, layout, arrays, num_particles, num_seeds, spread: as
            `Trainer` takes them; the guide may be `None`.

    Returns:
        The trainer, the arrays that its compiled functions take, and initial values.
    """
    key = (
        _Same(model),
        _Same(guide),
        _identity(loss),
        _identity(optimiser),
        layout,
        shapes_of(arrays),
        num_particles,
        num_seeds,
        spread,
        jax.config.jax_enable_x64,  # type: ignore[attr-defined]
    )
    found = _trainers.get(key)
    if found is not None and found.suits(arrays):
        _trainers.move_to_end(key)
        return found, arrays, found.first(keys, arrays)
    new_guide = make_guide() if guide is None else guide

    def make(layout: Layout, arrays: tuple) -> tuple[Trainer, Start]:
        trainer = Trainer(
            model,
            new_guide,
            loss,
            optimiser,
            layout,
            arrays,
            num_particles=num_particles,
            num_seeds=num_seeds,
            spread=spread,
        )
        return trainer, trainer.first(keys, arrays)

    try:
        trainer, start = make(layout, arrays)
    except _DATA_NEEDED:
        arrays, pinned = (), layout.pinned(arrays)
        trainer, start = make(pinned, ())
        trainer.is_reusable = False
    _trainers.pop(key, None)
    if trainer.is_reusable:
        _trainers[key] = trainer
    while len(_trainers) > MAX_TRAINERS:
        _trainers.popitem(last=False)
    return trainer, arrays, start


def forget_trainers() -> None:
    """Lets all that was compiled for `fit` go."""
    _trainers.clear()


def _identity(value: Any) -> Any:
    """Something hashable that is equal for things that were made in the same way.

    `optax.adam(0.01)` makes new functions at every call; they have the same code and refer to
    equal values.
    """
    if isinstance(value, types.FunctionType):
        cells = tuple(_identity(cell.cell_contents) for cell in value.__closure__ or ())
        defaults = tuple(map(_identity, value.__defaults__ or ()))
        names = [name for name in _names(value.__code__) if name in value.__globals__]
        outer = tuple((name, _number_or_same(value.__globals__[name])) for name in names)
        return value.__code__, cells, defaults, outer
    if isinstance(value, ELBO):
        return type(value), tuple((n, _identity(v)) for n, v in sorted(vars(value).items()))
    if isinstance(value, tuple):
        return type(value), tuple(map(_identity, value))
    if isinstance(value, jax.Array | np.ndarray):
        return str(value.dtype), value.shape, np.asarray(value).tobytes()
    return _number_or_same(value)


def _names(code: types.CodeType) -> list[str]:
    """What a function refers to outside itself, the functions inside it included."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return sorted({*code.co_names, *(name for names in inner for name in names)})


def _number_or_same(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return type(value), value
    return _Same(value)


class _Same:
    """Equal to itself alone, and keeps what it stands for alive, so that no id comes twice."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value
