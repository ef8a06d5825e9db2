"""What a run begins with: initial values, a warm start, or a checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from relbo._fitting.arguments import digest, plain_key
from relbo._fitting.checkpoints import Checkpoints, Snapshot
from relbo._fitting.fingerprint import (
    Fingerprint,
    describe,
    describe_key,
    describe_program,
    describe_shapes,
)
from relbo._fitting.monitor import Seed
from relbo._fitting.trainer import CHUNK, Carry, Control, Start, Trainer
from relbo._fitting.warm_start import warm_start_for
from relbo._program import Call


class Settings(NamedTuple):
    """What the user asked for, apart from the program."""

    num_seeds: int
    batch_size: int | None
    early_stopping: bool
    patience: int
    on_failure: str
    warm_start: bool


class Session(NamedTuple):
    """What a run begins with."""

    key: PRNGKeyArray
    trainer: Trainer
    arrays: tuple
    """As the trainer takes them."""
    start: Start
    call: Call
    settings: Settings

    def opened(
        self,
        checkpoint_dir: str | Path | None,
        data: tuple,
        report: Any,
        deadline: float,
    ) -> tuple[Snapshot, Checkpoints | None]:
        """Where to go on from, and where to keep snapshots."""
        checkpoints = None
        if checkpoint_dir is not None:
            cold = self._carry({})
            fingerprint = self._fingerprint(cold, data)
            checkpoints = Checkpoints(checkpoint_dir, fingerprint, self.trainer.spread)
            found = checkpoints.latest(cold)
            if found is not None:
                return found, checkpoints
        spread = self.trainer.spread
        if checkpoints is not None or (spread is not None and spread.is_shared):
            # Cut short, it would be another start than that of a run without a deadline, and
            # another one in each process.
            deadline = np.inf
        values = self._warm_values(report, deadline)
        number = self.settings.num_seeds
        seeds = [Seed(is_whitened=bool(values)) for _ in range(number)]
        losses = np.zeros((number, 0), np.dtype(jnp.result_type(float)))
        return Snapshot(0, self._carry(values), losses, seeds), checkpoints

    def _warm_values(self, report: Any, deadline: float) -> dict[str, Any]:
        """Values for the base's parameters, with a seed along the first axis; or none."""
        trainer, number = self.trainer, self.settings.num_seeds
        if not self.settings.warm_start:
            return {}
        warm_start = warm_start_for(trainer.model, trainer.guide, self.call)
        if warm_start is None:
            return {}
        found = []
        for seed, key in enumerate(jr.split(self.key, number)):
            start = {
                name: np.asarray(
                    self.start.params[name] if number == 1 else self.start.params[name][seed]
                )
                for name in warm_start.locations
            }
            words = np.ravel(plain_key(key)).tolist()
            found.append(warm_start(words, start, report, deadline))
        if any(values is None for values in found):
            return {}
        return jax.tree.map(lambda *x: x[0] if number == 1 else np.stack(x), *found)

    def _carry(self, values: dict[str, Any]) -> Carry:
        return self.trainer.begin(self.start, values, one_or_all(self.order_keys))

    @property
    def order_keys(self) -> PRNGKeyArray:
        """One a seed, for the order of the data."""
        keys = jr.split(self.key, self.settings.num_seeds)
        return jax.vmap(lambda key: jr.fold_in(key, 1))(keys)

    def _fingerprint(self, carry: Carry, data: tuple) -> Fingerprint:
        trainer = self.trainer
        params = trainer.svi.optim.get_params(carry.svi.optim_state)
        return {
            "key": describe_key(self.key),
            "model": describe(trainer.model),
            "guide": describe(trainer.guide),
            "loss": describe(trainer.svi.loss),
            "settings": {name: repr(value) for name, value in self.settings._asdict().items()},
            "argument": describe_shapes(self.call._asdict()),
            "parameter": describe_shapes(params),
            "data": digest(data),
            "program": describe_program(self._traced(carry)),
        }

    def _traced(self, carry: Carry) -> Any:
        number = self.settings.num_seeds
        flags = np.zeros(number, bool)
        control = Control(np.ones(number, np.float32), flags, flags, flags, flags)
        control = control if number > 1 else Control(*(x[0] for x in control))
        where = np.int32(0)
        layout, arrays = self.trainer.layout, self.arrays
        lead = (CHUNK,) if number == 1 else (number, CHUNK)
        if layout.is_streamed:
            chunk = lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype)
            arrays = layout.cut(arrays, chunk)
        return self.trainer.traced(carry, control, where, where, arrays)


def one_or_all(keys: PRNGKeyArray) -> PRNGKeyArray:
    return keys[0] if len(keys) == 1 else keys
