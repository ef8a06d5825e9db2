"""Checkpoints of a fit, written by orbax, and the fingerprint that identifies a fit."""

import hashlib
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Key

from relbo._devices import Spread, agreed
from relbo.core.fingerprint import Fingerprint, differences, digest, name_of, plain_array
from relbo.core.random import is_typed_key
from relbo.training.data import Rows, TrainingData
from relbo.training.program import Program
from relbo.training.starts import Starts
from relbo.training.stopping import SeedProgress, Stopping
from relbo.training.update import Carry

_FORMAT = "relbo fit 2"
_MAX_SHARE = 0.1
"""The largest share of a run's time that is spent on writing."""


class Snapshot(NamedTuple):
    """Everything that a run needs to continue."""

    iteration: int
    carry: Any
    losses: np.ndarray
    """One row per seed."""
    seeds: list[SeedProgress]


def first_snapshot(carry: Carry, num_seeds: int, *, is_whitened: bool) -> Snapshot:
    """Returns a snapshot before the first iteration."""
    seeds = [SeedProgress(is_whitened=is_whitened) for _ in range(num_seeds)]
    losses = np.zeros((num_seeds, 0), np.dtype(jnp.result_type(float)))
    return Snapshot(0, carry, losses, seeds)


class Checkpoints:
    """The checkpoints of one run in one directory, of which the last two are kept.

    Args:
        directory: their directory.
        fingerprint: of this run; the checkpoints of another run are refused.
        spread: the devices of the run. One of several processes writes, and all may read.
    """

    def __init__(
        self, directory: str | Path, fingerprint: Fingerprint, spread: Spread | None = None
    ):
        import orbax.checkpoint as ocp  # takes seconds

        self._ocp, self._fingerprint, self._spread = ocp, fingerprint, spread
        self.directory = Path(directory).expanduser().resolve()
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"checkpoint_dir: {self.directory} is not a directory")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            enable_async_checkpointing=False,
            multiprocessing_options=_writers(ocp, spread),
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options)
        self._saved_at, self._cost = -np.inf, 0.0

    def latest(self, carry: Any) -> Snapshot | None:
        """Returns the last snapshot, or `None` if there is none yet.

        Args:
            carry: a state with the structure that the run has.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        where = self.directory / str(step)
        about = self._about(step, where)
        found = differences(self._fingerprint, about["run"])
        if found:
            raise ValueError(
                f"checkpoint_dir: the checkpoint {where} is of another run. It differs in "
                f"{'; '.join(found)}. Choose another directory, or remove this one"
            )
        try:
            restore = self._ocp.args.Composite(state=self._ocp.args.StandardRestore())
            state = dict(self._manager.restore(step, args=restore)["state"])
            is_intact = digest(state) == about["digest"]
        except Exception as error:
            raise self._damaged(where, str(error).split("\n")[0][:200]) from error
        if not is_intact:
            raise self._damaged(where, "its numbers are not those that were written")
        losses = state.pop("losses")
        seeds = [SeedProgress.from_dict(seed) for seed in about["seeds"]]
        return Snapshot(step, _unpacked(state, carry), losses, seeds)

    def save(self, snapshot: Snapshot, *, is_last: bool) -> None:
        """Writes a snapshot, unless that would take too much of the run's time."""
        now = time.monotonic()
        is_soon = now - self._saved_at < self._cost / _MAX_SHARE
        is_known = snapshot.iteration in self._manager.all_steps()
        if agreed(self._spread, (is_soon and not is_last) or is_known):
            return
        state = {**_packed(snapshot.carry), "losses": snapshot.losses}
        about = {
            "format": _FORMAT,
            "run": self._fingerprint,
            "digest": digest(state),
            "seeds": [asdict(seed) for seed in snapshot.seeds],
        }
        args = self._ocp.args
        parts = args.Composite(state=args.StandardSave(state), about=args.JsonSave(about))
        self._manager.save(snapshot.iteration, args=parts)
        self._saved_at = time.monotonic()
        self._cost = self._saved_at - now

    def close(self) -> None:
        self._manager.close()

    def _about(self, step: int, where: Path) -> dict[str, Any]:
        try:
            restore = self._ocp.args.Composite(about=self._ocp.args.JsonRestore())
            about = self._manager.restore(step, args=restore)["about"]
        except Exception as error:
            raise self._damaged(where, "it has no description") from error
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            raise ValueError(
                f"checkpoint_dir: {where} is not a checkpoint of relbo.fit, or of another "
                "version of it. Choose another directory"
            )
        return about

    def _damaged(self, where: Path, why: str) -> ValueError:
        return ValueError(
            f"checkpoint_dir: the checkpoint {where} is incomplete or not of relbo.fit "
            f"({why}). Remove it to continue from the one before, or choose another directory"
        )


def fingerprint(
    program: Program,
    text: str,
    keys: Key[Array, " s"],
    data: TrainingData,
    options: tuple[Starts, Stopping],
) -> Fingerprint:
    """Describes a run, the same in every process.

    Args:
        program: what is run.
        text: the text of its compiled chunk. It contains the model, the guide, the loss and the
            optimiser with all their constants.
        keys: one key per seed.
        data: the data.
        options: the options of the run.
    """
    starts, stopping = map(asdict, options)
    del stopping["seconds"]  # a resumed run may have another time budget
    settings = {"batch_size": program.layout.batch_size, **starts, **stopping}
    # The order of operations and their names may differ between processes.
    lines = sorted(re.sub(r"[%@][\w#:]+", "", text).splitlines())
    return {
        "model": name_of(program.model),
        "guide": name_of(program.guide),
        "loss": name_of(program.updates.svi.loss),
        "settings": {name: repr(value) for name, value in settings.items()},
        "key": digest(keys),
        # Only some rows of data on disk are read.
        "data": digest([x.probe() if isinstance(x, Rows) else x for x in data.arrays]),
        "program": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
    }


def _writers(ocp: Any, spread: Spread | None) -> Any:
    """Returns which processes write: all that share the run, or this process alone."""
    alone = jax.process_index() if jax.process_count() > 1 else None
    if alone is None or (spread is not None and spread.is_shared):
        return ocp.options.MultiprocessingOptions()
    return ocp.options.MultiprocessingOptions(
        primary_host=alone, active_processes={alone}, barrier_sync_key_prefix=f"relbo{alone}"
    )


def _packed(carry: Any) -> dict[str, np.ndarray]:
    leaves = enumerate(map(plain_array, jax.tree.leaves(carry)))
    return {f"carry_{i:05d}": leaf for i, leaf in leaves}


def _unpacked(state: dict[str, np.ndarray], like: Any) -> Any:
    leaves, structure = jax.tree.flatten(like)
    values = [jnp.asarray(state[name]) for name in sorted(state)]
    restored = [
        jr.wrap_key_data(value, impl=jr.key_impl(leaf)) if is_typed_key(leaf) else value
        for value, leaf in zip(values, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, restored)
