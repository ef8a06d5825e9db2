"""One update of a guide's parameters, a chunk of these, and their loss."""

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.svi import SVIState
from numpyro.infer.util import log_density
from numpyro.util import check_model_guide_match

from relbo._devices import Spread
from relbo.guides.losses import RefinedELBO
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.training.data import DataLayout, minibatch
from relbo.training.optimiser import Units, rescaled, slowed
from relbo.training.stopping import CHUNK

NUM_DRAWS = 16
"""Number of draws of the default loss."""
MAX_INFINITE = 10
"""This number of infinite losses in a row is a failure; fewer are left out as unlucky draws."""


class InitialValues(NamedTuple):
    """Initial values of one seed."""

    params: dict[str, PyTree]
    """Unconstrained parameters."""
    mutable: Any
    key: PRNGKeyArray


class Carry(NamedTuple):
    """The state of one seed between two iterations."""

    svi: SVIState
    good: tuple[Any, Any]
    """The optimiser's and the mutable state where the loss was best."""
    failed_at: Int[Array, ""]
    """The iteration that failed, or -1. The state is the one before it."""
    num_infinite: Int[Array, ""]
    """Number of infinite losses in a row."""


class Control(NamedTuple):
    """What the host wants one seed to do in the next chunk."""

    factor: Float[Any, ""]
    """The factor of the updates."""
    is_active: Bool[Any, ""]
    """Whether to continue at all."""
    keep: Bool[Any, ""]
    """Whether the present state is the best one so far."""
    restore: Bool[Any, ""]
    """Whether to go back to the best state."""
    is_whitened: Bool[Any, ""]
    """Whether a normal base moves in units of its own standard deviations."""


class ChunkRecord(NamedTuple):
    """What the host sees of one chunk."""

    losses: Float[Array, " n"]
    """NaN where nothing was run."""
    step_size: Scalar
    """The mean step size of a refined guide; NaN for other guides."""


class Updates(NamedTuple):
    """The updates of one seed; compiled, and mapped over seeds, by `Program`."""

    svi: SVI
    layout: DataLayout
    units: Units | None
    """The units of a normal base; the optimiser is then a `FlatOptimiser`."""
    is_scalable: bool
    """Whether the optimiser's updates can be scaled."""
    spread: Spread | None

    @property
    def transforms(self) -> dict[str, Any]:
        """How each parameter is constrained; known once a guide was initialised."""
        return self.svi.constrain_fn.args[0]  # type: ignore[union-attr]

    def begin(self, initial: InitialValues, better: dict[str, Array]) -> Carry:
        """Returns the first state; `better` has constrained values of some parameters."""
        unconstrained = {name: self.transforms[name].inv(better[name]) for name in better}
        params = {**initial.params, **unconstrained}
        params = jax.tree.map(lambda p, like: p.astype(like.dtype), params, initial.params)
        state = SVIState(self.svi.optim.init(params), initial.mutable, initial.key)
        # Weak types would be strong after the first chunk, and the second be compiled again.
        state = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), state)
        none, zero = jnp.full((), -1, int), jnp.zeros((), int)
        return Carry(state, _learned(state), none, zero)

    def chunk(
        self,
        carry: Carry,
        control: Control,
        start: Any,
        stop: Any,
        arrays: tuple,
        streamed: tuple,
    ) -> tuple[Carry, ChunkRecord]:
        """Runs the iterations from `start` to `stop`, at most `CHUNK` of them."""
        carry = self._controlled(carry, control)

        def turn(iteration: Scalar, so_far: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, losses = so_far
            carry, loss = self._update(carry, control, iteration, arrays, streamed)
            return carry, losses.at[iteration - start].set(loss)

        losses = jnp.full(CHUNK, jnp.nan, jnp.result_type(float))
        # A loop of any length is one program, and a condition around its body is larger.
        carry, losses = jax.lax.fori_loop(start, stop, turn, (carry, losses))
        return carry, ChunkRecord(losses, self._step_size(carry.svi))

    def params(self, carry: Carry, restore: Bool[Any, ""]) -> tuple[dict[str, PyTree], Any]:
        """Returns the constrained parameters and the mutable state, present or best."""
        optim_state, mutable = choose(restore, carry.good, _learned(carry.svi))
        return self._constrained(optim_state), mutable

    def _controlled(self, carry: Carry, control: Control) -> Carry:
        now = _learned(carry.svi)
        good = choose(control.keep, now, carry.good)
        optim_state, mutable = choose(control.restore, good, now)
        if self.is_scalable:
            units = self._unit_vector(optim_state)
            optim_state = rescaled(optim_state, control.factor, units, control.is_whitened)
        return carry._replace(
            svi=SVIState(optim_state, mutable, carry.svi.rng_key),
            good=good,
            failed_at=jnp.where(control.is_active, -1, carry.failed_at),
            num_infinite=jnp.where(carry.failed_at >= 0, 0, carry.num_infinite),
        )

    def _unit_vector(self, optim_state: Any) -> Float[Array, " n"] | None:
        if self.units is None:
            return None
        units = slowed(self.units(self._constrained(optim_state)))
        ones = jax.tree.map(jnp.ones_like, self.svi.optim.get_params(optim_state))
        optimiser: Any = self.svi.optim
        return optimiser.vector({**ones, **units})

    def _update(
        self, carry: Carry, control: Control, iteration: Scalar, arrays: tuple, streamed: tuple
    ) -> tuple[Carry, Scalar]:
        arrays = minibatch(self.layout, iteration, arrays, streamed, self.spread)
        call = self.layout.call.fill(arrays)
        is_forward_mode = getattr(self.svi.guide, "_forward_mode_differentiation", False)
        old = carry.svi
        new, loss = self.svi.update(
            old,
            *call.args,
            forward_mode_differentiation=is_forward_mode,
            **call.kwargs,
        )
        if new.mutable_state is None:
            new = new._replace(mutable_state=old.mutable_state)
        loss = jnp.asarray(loss, jnp.result_type(float))
        before, after = _learned(old), _learned(new)
        is_running = control.is_active & (carry.failed_at < 0)
        is_fine = jnp.isfinite(loss) & _stays_finite(before, after)
        is_infinite = loss == jnp.inf
        num_infinite = jnp.where(is_infinite, carry.num_infinite + 1, 0)
        has_failed = ~is_fine & (~is_infinite | (num_infinite >= MAX_INFINITE))
        # The state has not changed since the first of several infinite losses.
        first = iteration - jnp.where(is_infinite, MAX_INFINITE - 1, 0)
        failed_at = jnp.where(is_running & has_failed, first, carry.failed_at)
        # The key advances even where an update is left out.
        optim_state, mutable = choose(is_running & is_fine, after, before)
        state = SVIState(optim_state, mutable, new.rng_key)
        carry = Carry(state, carry.good, failed_at, num_infinite)
        return carry, jnp.where(is_running, loss, jnp.nan)

    def _step_size(self, state: SVIState) -> Scalar:
        guide = self.svi.guide
        if not isinstance(guide, AbstractRefinedGuide):
            return jnp.full((), jnp.nan)
        params = self._constrained(state.optim_state)
        start = f"{guide.prefix}_step_size"
        sizes = [jnp.mean(params[name]) for name in params if name.startswith(start)]
        return jnp.mean(jnp.stack(sizes)) if sizes else jnp.full((), jnp.nan)

    def _constrained(self, optim_state: Any) -> dict[str, PyTree]:
        constrain = self.svi.constrain_fn
        assert constrain is not None
        return constrain(self.svi.optim.get_params(optim_state))


def choose(condition: Bool[Any, ""], one: PyTree, other: PyTree) -> PyTree:
    """Returns `one` where the condition holds, else `other`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _learned(state: SVIState) -> tuple[Any, Any]:
    return state.optim_state, state.mutable_state


def _stays_finite(before: PyTree, after: PyTree) -> Bool[Array, ""]:
    """Returns whether no finite entry became non-finite.

    Some optimisers start from an infinity, such as the best value so far.
    """
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    found = [
        jnp.all(jnp.isfinite(new) | ~jnp.isfinite(old))
        for old, new in pairs
        if jnp.issubdtype(jnp.asarray(new).dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(found)) if found else jnp.array(True)


class OrderedELBO(Trace_ELBO):
    """NumPyro's `Trace_ELBO`, computed in an order that is the same in every process.

    NumPyro subtracts log densities in the order of a set of names, which differs between
    processes. A run that is resumed in a new process would differ in the last bits, and JAX's
    persistent cache of compiled programs would not find the program of an earlier process.
    """

    def __init__(self, loss: Trace_ELBO, *, has_mutable: bool):
        super().__init__(
            loss.num_particles,
            loss.vectorize_particles,  # type: ignore[arg-type]
            loss.multi_sample_guide,
            sum_sites=False,
        )
        self._has_mutable = has_mutable

    def loss_with_mutable_state(
        self, rng_key: Any, param_map: Any, model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._has_mutable or self.num_particles == 1 or self.multi_sample_guide:
            return self._loss_by_site(rng_key, param_map, model, guide, *args, **kwargs)

        def log_weight(key: PRNGKeyArray) -> Scalar:
            model_key, guide_key = jr.split(key)
            log_q, draw = log_density(handlers.seed(guide, guide_key), args, kwargs, param_map)
            replayed = handlers.replay(handlers.seed(model, model_key), draw)
            log_p, trace = log_density(replayed, args, kwargs, param_map)
            check_model_guide_match(trace, draw)
            return jnp.asarray(log_p - log_q)

        keys = jr.split(rng_key, self.num_particles)
        log_weights = self.vectorize_particles_fn(log_weight, keys)
        return {"loss": -jnp.mean(log_weights), "mutable_state": None}

    def _loss_by_site(self, *args: Any, **kwargs: Any) -> Any:
        found = super().loss_with_mutable_state(*args, **kwargs)
        losses: Any = found["loss"]
        return {**found, "loss": sum(losses[name] for name in sorted(losses))}


def training_loss(loss: Any, guide: Any, *, has_mutable: bool) -> Any:
    """Returns the user's loss, or the default one of the guide.

    `Trace_ELBO` drops mutable state if it takes several draws; `RefinedELBO` keeps it.
    """
    if loss is not None:
        is_plain = type(loss) is Trace_ELBO and loss.sum_sites
        return OrderedELBO(loss, has_mutable=has_mutable) if is_plain else loss
    is_refined = isinstance(guide, AbstractRefinedGuide)
    if is_refined and (guide.refinement.kernel.interacting or has_mutable):
        return RefinedELBO(NUM_DRAWS)
    number = 1 if has_mutable else NUM_DRAWS
    return OrderedELBO(Trace_ELBO(number), has_mutable=has_mutable)


def over_devices(loss: Any, spread: Spread) -> Any:
    """Returns a copy of a loss that spreads its draws over devices.

    All losses of NumPyro map over their draws with one function that they keep as an attribute.
    """
    if getattr(loss, "vectorize_particles", None) is not True:
        return loss
    copied = copy.copy(loss)
    copied.vectorize_particles_fn = spread.map
    return copied
