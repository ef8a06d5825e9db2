"""The compiled programs that train a guide, kept so that a second fit compiles nothing."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Key, PRNGKeyArray
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVIState

from relbo._compiler import quick_compilation
from relbo._devices import Spread
from relbo.core.parameters import is_traced
from relbo.guides.auto_refined import AutoRefined
from relbo.problem.call import ByIdentity
from relbo.problem.traces import NEEDS_VALUES, Model, initial_run, latent_names
from relbo.training.data import TrainingData
from relbo.training.guide_copy import as_new, forget, freezes_data
from relbo.training.optimiser import (
    FlatOptimiser,
    default_optimiser,
    scalable,
    units_for,
)
from relbo.training.update import (
    Carry,
    Control,
    InitialValues,
    Updates,
    over_devices,
    training_loss,
)

MAX_PROGRAMS = 8
"""Number of programs that are kept."""

_programs: OrderedDict[Any, "Program"] = OrderedDict()


class Program:
    """A model and a guide with the compiled functions that train it.

    Data are arguments of the compiled functions, so that one program serves every fit of the
    same model to data of the same shapes. All inputs and outputs that belong to a seed have a
    leading axis.

    Args:
        model: the model.
        guide: its guide; it is set up here if necessary.
        loss: a NumPyro loss, or `None`.
        optimiser: an optimiser of optax or NumPyro, or `None`.
        data: the arguments; other data of the same layout and shapes may follow.
        num_seeds: number of seeds.
        spread: the devices that share the rows of a minibatch, or else the draws of the loss.
    """

    def __init__(
        self,
        model: Model,
        guide: Any,
        loss: Any,
        optimiser: Any,
        data: TrainingData,
        *,
        num_seeds: int,
        spread: Spread | None,
    ):
        self.model, self.guide, self.layout, self.spread = model, guide, data.layout, spread
        self.is_default_optimiser = optimiser is None
        self._given_loss, self._num_seeds = loss, num_seeds
        self._read_supports = jax.jit(self._supports)
        # A guide that chooses its base does so here, and the units are those of the base.
        self._set_up_guide(data)
        units = units_for(guide) if optimiser is None else None
        self.is_scalable = self.is_default_optimiser or isinstance(
            optimiser, optax.GradientTransformation
        )
        if optimiser is None:
            optimiser = FlatOptimiser(default_optimiser())
        elif self.is_scalable:
            optimiser = scalable(optimiser)
        svi = SVI(model, guide, optimiser, loss)
        self.updates = Updates(svi, data.layout, units, self.is_scalable, spread)
        self.is_reusable = not freezes_data(guide)
        compiled = functools.partial(jax.jit, compiler_options=quick_compilation())
        self._initial = compiled(self._over_seeds(self._initial_values, (0, None)))
        self.begin = compiled(self._over_seeds(self.updates.begin, (0, 0)))
        # The state is whole on every device, which the compiler might not choose by itself.
        whole = None if spread is None else spread.everywhere
        self.chunk = compiled(self._chunks(self.updates), out_shardings=whole)
        self.params = compiled(self._over_seeds(self.updates.params, (0, 0)))

    def initial(self, keys: Key[Array, " s"], first: tuple) -> InitialValues:
        """Draws initial values of all parameters, as if the guide had never been used."""
        values = self._initial(keys, first)
        if any(map(is_traced, jax.tree.leaves(self.updates.transforms))):
            # A constraint with numbers that the model computes from its data.
            self._svi_of_new_guide(jr.key(0), first)
            self.is_reusable = False
        return values

    def suits(self, first: tuple) -> bool:
        """Returns whether the guide, which may have been set up with other data, fits these.

        A guide keeps the supports of the latent sites, and those may depend on the data.
        """
        if not isinstance(self.guide, AutoGuide):
            return True
        ours = _support_leaves(self.guide.prototype_trace or {})
        if not ours:
            return True
        theirs = self._read_supports(first)
        return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))

    def text(self, carry: Carry, arrays: tuple, streamed: tuple) -> str:
        """Returns the text of a chunk's program, the same for any number of devices."""
        flags = np.zeros(self._num_seeds, bool)
        control = Control(flags.astype(np.float32), flags, flags, flags, flags)
        zero = np.int32(0)
        # JAX keeps the trace: on one device the first chunk does not trace again.
        chunk = self.chunk if self.spread is None else self._chunk_of_one_device()
        traced = chunk.trace(carry, control, zero, zero, arrays, streamed)
        return traced.lower(lowering_platforms=("cpu",)).as_text()

    def _chunk_of_one_device(self) -> Any:
        alone = copy.copy(self.updates.svi)
        alone.loss = self._loss
        return jax.jit(self._chunks(self.updates._replace(svi=alone, spread=None)))

    def _chunks(self, updates: Updates) -> Callable:
        return self._over_seeds(updates.chunk, (0, 0, None, None, None, 0))

    def _over_seeds(self, function: Callable, in_axes: tuple) -> Callable:
        """Maps a function over seeds. One seed is not mapped, which would be slower."""
        if self._num_seeds > 1:
            return jax.vmap(function, in_axes)

        @functools.wraps(function)
        def single(*inputs: Any) -> Any:
            without_axis = [
                jax.tree.map(lambda x: x[0], value) if axis == 0 else value
                for value, axis in zip(inputs, in_axes, strict=True)
            ]
            return jax.tree.map(lambda x: x[None], function(*without_axis))

        return single

    def _set_up_guide(self, data: TrainingData) -> None:
        """Runs a guide once with values at hand, which some guides need."""
        guide = self.guide
        if not isinstance(guide, AutoGuide):
            return
        if freezes_data(guide) or (
            guide.prototype_trace is not None and not self.suits(data.first)
        ):
            forget(guide)
        if guide.prototype_trace is None:
            call = data.first_call
            with handlers.block(), handlers.seed(rng_seed=jr.key(0)):
                guide._setup_prototype(*call.args, **call.kwargs)

    def _supports(self, first: tuple) -> list[Array]:
        return _support_leaves(initial_run(self.model, self.layout.call.fill(first)))

    def _initial_values(self, key: PRNGKeyArray, first: tuple) -> InitialValues:
        state, svi = self._svi_of_new_guide(key, first), self.updates.svi
        has_mutable = bool(jax.tree.leaves(state.mutable_state))
        self._loss = training_loss(self._given_loss, self.guide, has_mutable=has_mutable)
        svi.loss = self._loss
        # With minibatches the devices already share the rows.
        if self.spread is not None and self.layout.batch_size is None:
            svi.loss = over_devices(self._loss, self.spread)
        params = svi.optim.get_params(state.optim_state)
        return InitialValues(params, state.mutable_state, state.rng_key)

    def _svi_of_new_guide(self, key: PRNGKeyArray, first: tuple) -> SVIState:
        """Initialises a guide that was never used, and learns the constraints from it."""
        call, ours = self.layout.call.fill(first), self.updates.svi
        svi = SVI(self.model, as_new(self.guide), ours.optim, ours.loss)
        state = svi.init(key, *call.args, **call.kwargs)
        ours.constrain_fn = svi.constrain_fn
        return state


def program_for(
    keys: Key[Array, " s"],
    data: TrainingData,
    *,
    model: Any,
    guide: Any,
    loss: Any,
    optimiser: Any,
    spread: Spread | None,
) -> tuple[Program, InitialValues, TrainingData]:
    """Returns a program, initial values and the data; an earlier program if there is one.

    Args:
        keys: one key per seed, for the initial values.
        data: the arguments. They are returned as constants if the model needs their values.
        model, guide, loss, optimiser, spread: see `Program`. An earlier program must have had
            these very objects; the guide, loss and optimiser may be `None`.
    """
    objects = tuple(map(ByIdentity, (model, guide, loss, optimiser)))
    shapes = tuple((x.shape, str(x.dtype)) for x in data.arrays)
    is_x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    cache_key = (*objects, data.layout, shapes, len(keys), spread, is_x64)
    found = _programs.pop(cache_key, None)
    if found is not None and found.suits(data.first):
        _programs[cache_key] = found
        return found, found.initial(keys, data.first), data
    guide = AutoRefined(model) if guide is None else guide

    def make(data: TrainingData) -> tuple[Program, InitialValues, TrainingData]:
        program = Program(
            model, guide, loss, optimiser, data, num_seeds=len(keys), spread=spread
        )
        return program, program.initial(keys, data.first), data

    try:
        made = make(data)
    except NEEDS_VALUES:
        return make(data.with_constants())
    if made[0].is_reusable:
        _programs[cache_key] = made[0]
    if len(_programs) > MAX_PROGRAMS:
        _programs.popitem(last=False)
    return made


def forget_programs() -> None:
    """Drops all compiled programs of `fit`."""
    _programs.clear()


def _support_leaves(trace: dict[str, Any]) -> list[Array]:
    supports = {name: trace[name]["fn"].support for name in latent_names(trace)}
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(supports)]
