"""Checkpoints of a run, written by orbax: whole or not there, and refused if not ours."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from relbo._fitting.arguments import digest, is_key, plain_key
from relbo._fitting.fingerprint import Fingerprint, differences
from relbo._fitting.monitor import Seed
from relbo._mesh import Spread, agreed

_FORMAT = "relbo fit 1"
_MAX_SHARE = 0.1
"""Of a run's time that may go into writing."""


class Snapshot(NamedTuple):
    """All that a run needs to go on."""

    iteration: int
    carry: Any
    losses: np.ndarray
    seeds: list[Seed]


class Checkpoints:
    """The checkpoints of one run in one directory; the last two are kept.

    Args:
        directory: where they are.
        fingerprint: of this run: another one's checkpoints are refused.
        spread: the devices of the run. Of several processes one writes, and all may read.
    """

    def __init__(
        self, directory: str | Path, fingerprint: Fingerprint, spread: Spread | None = None
    ):
        # It takes seconds to import: only those who ask for it wait.
        import orbax.checkpoint as ocp

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
        """The last snapshot, or `None` where there is none yet.

        Args:
            carry: of the structure that the run has.
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
            is_whole = digest([state[name] for name in sorted(state)]) == about["digest"]
        except Exception as error:
            raise self._damaged(where, str(error).split("\n")[0][:200]) from error
        if not is_whole:
            raise self._damaged(where, "its numbers are not those that were written")
        losses = state.pop("losses")
        seeds = [Seed.from_dict(seed) for seed in about["seeds"]]
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
            "digest": digest([state[name] for name in sorted(state)]),
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
            f"checkpoint_dir: the checkpoint {where} is not whole or not of relbo.fit ({why}). "
            "Remove it to go on from the one before, or choose another directory"
        )


def _writers(ocp: Any, spread: Spread | None) -> Any:
    """All processes of a run that they share; a process on its own does not wait for others."""
    alone = jax.process_index() if jax.process_count() > 1 else None
    if alone is None or (spread is not None and spread.is_shared):
        return ocp.options.MultiprocessingOptions()
    return ocp.options.MultiprocessingOptions(
        primary_host=alone, active_processes={alone}, barrier_sync_key_prefix=f"relbo{alone}"
    )


def _packed(carry: Any) -> dict[str, np.ndarray]:
    leaves = map(plain_key, jax.tree.leaves(carry))
    return {f"carry_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}


def _unpacked(state: dict[str, np.ndarray], like: Any) -> Any:
    leaves, structure = jax.tree.flatten(like)
    values = [state[name] for name in sorted(state)]
    restored = [
        jr.wrap_key_data(jnp.asarray(value), impl=jr.key_impl(leaf))
        if is_key(leaf)
        else jnp.asarray(value)
        for value, leaf in zip(values, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, restored)
