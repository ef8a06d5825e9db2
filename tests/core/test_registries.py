"""A new kernel or account is one file and one line in a registry."""

import sys
from importlib import import_module

import pytest

import registry
import relbo
from laws import ALL_LAWS
from relbo.core.accounts import ACCOUNTS
from relbo.core.kernels import KERNELS

NEW_KERNEL = """
from typing import Any, ClassVar

import jax.numpy as jnp

import relbo
from relbo.core.kernels import KERNELS, AbstractOneGradientKernel, Arrival, Departure


class TamedLangevin(AbstractOneGradientKernel):
    step_size: relbo.Positive
    randomness: ClassVar[str] = "position"
    interacting: ClassVar[bool] = False

    def __init__(self, step_size: Any = 0.01):
        self.step_size = relbo.Positive.of(step_size, name="step_size")

    @property
    def reversible(self):
        return True

    def init(self, noise, position):
        return jnp.zeros_like(position)

    def depart(self, noise, position, score, memory):
        move = self._drift(score) + jnp.sqrt(2 * self.step_size.value) * noise
        return Departure(position + move, move, self._log_density(noise))

    def arrive(self, position, score, memory):
        back = -memory - self._drift(score)
        log_reverse = self._log_density(back / jnp.sqrt(2 * self.step_size.value))
        return Arrival(memory, log_reverse)

    def _drift(self, score):
        # Bounded by one, and as far as the score for small scores.
        return jnp.tanh(self.step_size.value * score)

    def _log_density(self, noise):
        variance = 2 * self.step_size.value
        return -0.5 * jnp.sum(jnp.square(noise) + jnp.log(2 * jnp.pi * variance))


KERNELS["TamedLangevin"] = TamedLangevin
"""

NEW_ACCOUNT = """
from typing import ClassVar

import jax
import jax.numpy as jnp

import relbo
from relbo.core.accounts import ACCOUNTS, Left


class NarrowedAccount(relbo.AbstractAccount):
    counts_forward: ClassVar[bool] = False
    counts_reverse: ClassVar[bool] = False
    counts_volume: ClassVar[bool] = False
    redraws: ClassVar[bool] = True

    def start(self, key, base):
        return base.centre, jnp.zeros(())

    def leave(self, key, leave_fn, position):
        _, kept = leave_fn(position)
        return Left(kept, jnp.zeros((), position.dtype), jnp.array(True))

    def finish(self, key, base, position, log_q):
        draw, log_prob = base.sample(key)
        narrow = lambda m, z, c: m + 0.95 * (z - c)
        moved = jax.tree.map(narrow, position, draw, base.centre)
        size = sum(leaf.size for leaf in jax.tree.leaves(draw))
        return moved, log_prob - size * jnp.log(0.95)


ACCOUNTS["NarrowedAccount"] = NarrowedAccount
"""


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Registers a kernel and an account from temporary files, and removes them again."""
    (tmp_path / "new_kernel.py").write_text(NEW_KERNEL)
    (tmp_path / "new_account.py").write_text(NEW_ACCOUNT)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("new_kernel", "new_account"):
        import_module(name)
    yield
    del KERNELS["TamedLangevin"], ACCOUNTS["NarrowedAccount"]
    for name in ("new_kernel", "new_account"):
        del sys.modules[name]


@pytest.mark.usefixtures("registered")
def test_registered_parts_are_in_the_table_and_satisfy_every_law(monkeypatch):
    row = next(row for row in relbo.validity_table().splitlines() if "TamedLangevin" in row)
    assert row.count("**bound**") == 4
    assert "NarrowedAccount" in relbo.validity_table()
    monkeypatch.setitem(registry.KERNELS, "TamedLangevin", KERNELS["TamedLangevin"])
    for pair in [("TamedLangevin", "ReverseKernelAccount"), ("SGD", "NarrowedAccount")]:
        for law in ALL_LAWS:
            law(*pair)


def test_parts_are_gone_after_their_removal():
    assert "TamedLangevin" not in relbo.validity_table()
    assert "NarrowedAccount" not in relbo.validity_table()
