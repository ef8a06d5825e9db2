"""One compiled program that trains a guide, a chunk of iterations at a time."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVIState

from relbo._fitting.arguments import Layout, Order, first_order, next_rows
from relbo._fitting.guide_memory import as_new, forget, freezes_data
from relbo._fitting.losses import chosen_loss, spread_particles
from relbo._fitting.optimiser import adjustable, default_optimiser, with_factor, with_scales
from relbo._fitting.units import units_for
from relbo._mesh import Spread
from relbo._mesh import rows as over_devices
from relbo._parameters import is_traced
from relbo._program import Model, initial_run, latent_names
from relbo._refined_guide import AbstractRefinedGuide

CHUNK = 100
"""Iterations between two looks of the host."""
MAX_INFINITE = 10
"""So many infinite losses in a row are a failure; fewer are unlucky draws, and left out."""


class Carry(NamedTuple):
    """Where a run is; with several seeds each array has a leading axis."""

    svi: SVIState
    good: tuple[Any, Any]
    """The optimiser's and the mutable state where the loss was best, to go back to."""
    order: Order | None
    failed_at: Int[Array, ""]
    """The iteration that spoilt the run, or -1. The state is that before it."""
    num_infinite: Int[Array, ""]
    """Infinite losses in a row."""


class Control(NamedTuple):
    """What the host wants of each seed in the next chunk."""

    factor: Float[Any, ""]
    """For the updates."""
    is_active: Bool[Any, ""]
    """Whether to go on at all."""
    keep: Bool[Any, ""]
    """Whether the present state is the one to go back to."""
    restore: Bool[Any, ""]
    """Whether to go back to it."""
    is_whitened: Bool[Any, ""]
    """Whether a normal base is moved in units of its own standard deviations."""


class Record(NamedTuple):
    """What one chunk leaves behind."""

    losses: Float[Array, " n"]
    """NaN where nothing was run."""
    step_size: Scalar
    """The mean over the refined guide's step sizes; NaN where there are none."""


class Start(NamedTuple):
    """Where a run may begin."""

    params: dict[str, PyTree]
    """Unconstrained."""
    mutable: Any
    key: PRNGKeyArray


class Trainer:
    """A model and a guide with the compiled functions that train it.

    It holds no data: they are arguments of what is compiled. So it serves every fit of the same
    model to data of the same shape.

    Args:
        model: the program.
        guide: its guide; set up here where it has not been.
        loss: a loss of NumPyro's kind, or `None`.
        optimiser: of optax or NumPyro, or `None`.
        layout: of the arguments.
        arrays: the first data.
        num_particles: of the default loss.
        num_seeds: how many runs there are at once.
        spread: over which devices the rows of a minibatch are spread, or else the particles of
            the loss.
    """

    def __init__(
        self,
        model: Model,
        guide: Any,
        loss: Any,
        optimiser: Any,
        layout: Layout,
        arrays: tuple,
        *,
        num_particles: int | None,
        num_seeds: int,
        spread: Spread | None = None,
    ):
        self.model, self.guide, self.layout, self.num_seeds = model, guide, layout, num_seeds
        self._given_loss, self._num_particles = loss, num_particles
        self.spread, self._has_mutable = spread, False
        self.is_default = optimiser is None
        if self.is_default:
            optimiser = default_optimiser()
        self.is_adjustable = isinstance(optimiser, optax.GradientTransformation)
        if self.is_adjustable:
            optimiser = adjustable(optimiser, has_scales=self.is_default)
        self._units = units_for(guide)
        self._read_supports = jax.jit(self._supports)
        if freezes_data(guide):
            forget(guide)
        self._set_up(arrays)
        if not self.suits(arrays):
            forget(guide)
            self._set_up(arrays)
        self.svi = SVI(model, guide, optimiser, self._loss(self._has_mutable))
        self._traced_first = jax.jit(self._over_seeds(self._first, (0, None)))
        self.begin = jax.jit(self._over_seeds(self._begin, (0, 0, 0)))
        self._chunks = self._over_seeds(
            self._chunk, (0, 0, None, None, layout.seed_axes if layout.is_streamed else None)
        )
        # The state is whole on every device, whatever the compiler would like better.
        self.chunk = (
            jax.jit(self._chunks)
            if spread is None
            else jax.jit(self._chunks, out_shardings=spread.everywhere)
        )
        self.params = jax.jit(self._over_seeds(self._params, (0, 0)))
        self.is_reusable = not freezes_data(guide)

    def first(self, keys: PRNGKeyArray, arrays: tuple) -> Start:
        """Initial values of all parameters, drawn by the guide as if for the first time."""
        start = self._traced_first(keys, arrays)
        if any(map(is_traced, jax.tree.leaves(self.transforms))):
            # A constraint with numbers that the program computes from its data.
            call = self.layout.first_call(arrays)
            svi = SVI(self.model, as_new(self.guide), self.svi.optim, self.svi.loss)
            svi.init(jr.key(0), *call.args, **call.kwargs)
            self._learn_constraints(svi)
            self.is_reusable = False
        return start

    def traced(self, *inputs: Any) -> Any:
        """What a chunk computes, apart from where: the same on one device and on many."""
        spread, loss = self.spread, self.svi.loss
        self.spread, self.svi.loss = None, self._loss(self._has_mutable)
        try:
            # In a function of its own, or JAX would remember how it was traced before.
            return jax.jit(lambda *inputs: self._chunks(*inputs)).trace(*inputs).jaxpr
        finally:
            self.spread, self.svi.loss = spread, loss

    def suits(self, arrays: tuple) -> bool:
        """Whether the guide, which may have been set up with other data, is right for these.

        A guide keeps the supports of the latent sites, and those may depend on the data.
        """
        if not isinstance(self.guide, AutoGuide):
            return True
        ours = _support_leaves(self.guide.prototype_trace or {})
        theirs = self._read_supports(arrays)
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))

    def _set_up(self, arrays: tuple) -> None:
        """Shows the guide its model, with values in hand: some guides look at them."""
        if not isinstance(self.guide, AutoGuide) or self.guide.prototype_trace is not None:
            return
        call = self.layout.first_call(arrays)
        with handlers.block(), handlers.seed(rng_seed=jr.key(0)):
            self.guide._setup_prototype(*call.args, **call.kwargs)

    def _over_seeds(self, function: Any, in_axes: tuple) -> Any:
        return function if self.num_seeds == 1 else jax.vmap(function, in_axes)

    def _supports(self, arrays: tuple) -> list[Array]:
        return _support_leaves(initial_run(self.model, self.layout.first_call(arrays)))

    def _first(self, key: PRNGKeyArray, arrays: tuple) -> Start:
        call = self.layout.first_call(arrays)
        svi = SVI(self.model, as_new(self.guide), self.svi.optim, self.svi.loss)
        state = svi.init(key, *call.args, **call.kwargs)
        self._learn_constraints(svi)
        self._has_mutable = bool(jax.tree.leaves(state.mutable_state))
        self.svi.loss = self._loss(self._has_mutable)
        params = svi.optim.get_params(state.optim_state)
        return Start(params, state.mutable_state, state.rng_key)

    def _loss(self, has_mutable: bool) -> Any:
        loss = chosen_loss(self._given_loss, self.guide, self._num_particles, has_mutable)
        # Rows and particles at once would be too many pieces for one axis of devices.
        has_rows = self.layout.batch_size is not None
        return loss if self.spread is None or has_rows else spread_particles(loss, self.spread)

    def _learn_constraints(self, svi: SVI) -> None:
        self.transforms = svi.constrain_fn.args[0]  # type: ignore[union-attr]
        self.svi.constrain_fn = svi.constrain_fn

    def _begin(
        self,
        start: Start,
        values: dict[str, Array],
        order_key: PRNGKeyArray,
    ) -> Carry:
        """A run from initial values, some of them replaced by better ones."""
        better = {name: self.transforms[name].inv(values[name]) for name in values}
        params = {**start.params, **better}
        params = jax.tree.map(lambda p, like: p.astype(like.dtype), params, start.params)
        optim_state = self.svi.optim.init(params)
        state = SVIState(optim_state, start.mutable, start.key)
        return Carry(
            state,
            (optim_state, start.mutable),
            first_order(order_key, self.layout),
            jnp.array(-1),
            jnp.array(0),
        )

    def _chunk(
        self, carry: Carry, control: Control, start: Any, stop: Any, arrays: tuple
    ) -> tuple[Carry, Record]:
        carry = self._obey(carry, control)

        def turn(carry: Carry, iteration: Scalar) -> tuple[Carry, Scalar]:
            # The last chunk is cut short without a program of its own.
            return jax.lax.cond(
                iteration < stop,
                lambda carry: self._update(carry, control, iteration, start, arrays),
                lambda carry: (carry, jnp.full((), jnp.nan)),
                carry,
            )

        iterations = start + jnp.arange(CHUNK)
        carry, losses = jax.lax.scan(turn, carry, iterations)
        return carry, Record(losses, self._step_size(carry.svi))

    def _obey(self, carry: Carry, control: Control) -> Carry:
        now = (carry.svi.optim_state, carry.svi.mutable_state)
        good = choose(control.keep, now, carry.good)
        optim_state, mutable = choose(control.restore, good, now)
        if self.is_adjustable:
            optim_state = with_factor(optim_state, control.factor)
        if self.is_default and self._units is not None:
            units = self._units(self._constrained(optim_state))
            optim_state = with_scales(optim_state, units, control.is_whitened)
        has_failed = carry.failed_at >= 0
        state = SVIState(optim_state, mutable, carry.svi.rng_key)
        return carry._replace(
            svi=state,
            good=good,
            failed_at=jnp.where(control.is_active, -1, carry.failed_at),
            num_infinite=jnp.where(has_failed, 0, carry.num_infinite),
        )

    def _update(
        self, carry: Carry, control: Control, iteration: Scalar, start: Any, arrays: tuple
    ) -> tuple[Carry, Scalar]:
        order, arrays = self._minibatch(carry.order, iteration, start, arrays)
        call = self.layout.call(arrays)
        old = carry.svi
        new, loss = self.svi.update(
            old,
            *call.args,
            forward_mode_differentiation=_is_forward_mode(self.guide),
            **call.kwargs,
        )
        loss = jnp.asarray(loss, jnp.result_type(float))
        mutable = old.mutable_state if new.mutable_state is None else new.mutable_state
        after, before = (new.optim_state, mutable), (old.optim_state, old.mutable_state)
        is_running = control.is_active & (carry.failed_at < 0)
        is_fine = jnp.isfinite(loss) & _stays_finite(before, after)
        is_infinite = loss == jnp.inf
        num_infinite = jnp.where(is_infinite, carry.num_infinite + 1, 0)
        is_broken = ~is_fine & (~is_infinite | (num_infinite >= MAX_INFINITE))
        # The state has not changed since the first of several infinite losses.
        first = iteration - jnp.where(is_infinite, MAX_INFINITE - 1, 0)
        failed_at = jnp.where(is_running & is_broken, first, carry.failed_at)
        # New draws come even where an update is left out.
        optim_state, mutable = choose(is_running & is_fine, after, before)
        state = SVIState(optim_state, mutable, new.rng_key)
        carry = Carry(state, carry.good, order, failed_at, num_infinite)
        return carry, jnp.where(is_running, loss, jnp.nan)

    def _minibatch(
        self, order: Order | None, iteration: Scalar, start: Any, arrays: tuple
    ) -> tuple[Order | None, tuple]:
        """What one iteration sees of the arrays."""
        if self.layout.is_streamed:
            # What came from the host is the minibatches of this chunk.
            take = lambda x: jax.lax.dynamic_index_in_dim(x, iteration - start, keepdims=False)
        else:
            order, rows = next_rows(order, self.layout, iteration)
            if rows is None:
                return order, arrays
            rows = over_devices(self.spread, rows)
            take = lambda x: jnp.take(x, rows, axis=0)
        return order, self.layout.cut(arrays, lambda x: over_devices(self.spread, take(x)))

    def _step_size(self, state: SVIState) -> Scalar:
        if not isinstance(self.guide, AbstractRefinedGuide):
            return jnp.full((), jnp.nan)
        params = self._constrained(state.optim_state)
        start = f"{self.guide.prefix}_step_size"
        sizes = [jnp.mean(params[name]) for name in params if name.startswith(start)]
        return jnp.mean(jnp.stack(sizes)) if sizes else jnp.full((), jnp.nan)

    def _params(self, carry: Carry, restore: Bool[Any, ""]) -> tuple[dict[str, PyTree], Any]:
        """Constrained parameters and mutable state: the present ones, or the best."""
        now = (carry.svi.optim_state, carry.svi.mutable_state)
        optim_state, mutable = choose(restore, carry.good, now)
        return self._constrained(optim_state), mutable

    def _constrained(self, optim_state: Any) -> dict[str, PyTree]:
        constrain = self.svi.constrain_fn
        assert constrain is not None
        return constrain(self.svi.optim.get_params(optim_state))


def choose(condition: Bool[Any, ""], one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _support_leaves(trace: dict[str, Any]) -> list[Array]:
    supports = {name: trace[name]["fn"].support for name in latent_names(trace)}
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(supports)]


def _equal(one: Array, other: Array) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def _is_forward_mode(guide: Any) -> bool:
    refinement = getattr(guide, "refinement", None)
    if refinement is not None and refinement.forward_mode_differentiation:
        return True
    return bool(getattr(guide, "_forward_mode_differentiation", False))


def _stays_finite(before: PyTree, after: PyTree) -> Bool[Array, ""]:
    """Whether nothing that was finite has become otherwise.

    Some optimisers start from an infinity, such as the best value so far.
    """
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    found = [
        jnp.all(jnp.isfinite(new) | ~jnp.isfinite(old))
        for old, new in pairs
        if jnp.issubdtype(jnp.asarray(new).dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(found)) if found else jnp.array(True)
