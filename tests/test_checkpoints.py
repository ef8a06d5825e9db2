"""Checkpoints: a run that was stopped ends as if it had not been, and no other is believed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import relbo
from relbo._fitting.trainers import forget_trainers
from relbo.training import Result

NUM = 8
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4, -0.4, 2.9, 1.1], np.float32)


def model(y, batch_size=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", NUM, subsample_size=batch_size):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def own_guide(y, batch_size=None):
    loc = numpyro.param("loc", lambda key: jr.normal(key))
    scale = numpyro.param("scale", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


PLAIN = AutoNormal(model)


def fit(guide=own_guide, directory=None, y=Y, key=0, **options):
    options = {"num_iterations": 300, "early_stopping": False, "progress": False, **options}
    return relbo.fit(jr.key(key), model, (y,), guide=guide, checkpoint_dir=directory, **options)


def contents(directory):
    """All files below a directory, byte by byte."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def steps_in(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def assert_equal(one, other):
    assert one.params.keys() == other.params.keys()
    for name in one.params:
        np.testing.assert_array_equal(one.params[name], other.params[name])
    np.testing.assert_array_equal(one.losses, other.losses)
    np.testing.assert_array_equal(one.seed_losses, other.seed_losses)
    assert one.result is other.result
    assert one.message == other.message


VARIANTS = {
    "function": {"guide": own_guide},
    "warm start": {"guide": PLAIN},
    "minibatches": {"kwargs": {"batch_size": 2}, "batch_size": 2},
    "seeds that back off": {
        "num_seeds": 2,
        "keep": "all",
        "on_failure": "back off",
        "optimiser": optax.sgd(2.0),
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_stopped_run_ends_as_if_it_had_not_been(name, tmp_path):
    options = {"guide": own_guide, "num_iterations": 250, "early_stopping": False}
    options |= {"progress": False, **VARIANTS[name]}
    run = lambda **more: relbo.fit(jr.key(0), model, (Y,), **options, **more)
    whole = run()
    first = run(checkpoint_dir=tmp_path, seconds=0.0)
    assert first.result is Result.OUT_OF_TIME
    assert first.num_iterations == 100
    assert steps_in(tmp_path) == [100]
    forget_trainers()
    second = run(checkpoint_dir=tmp_path)
    assert_equal(second, whole)
    # What has ended is read, not run again.
    assert_equal(run(checkpoint_dir=tmp_path), whole)


def test_an_exception_leaves_a_run_to_go_on_from(tmp_path, monkeypatch):
    from relbo._fitting.run import Run

    def interrupt(self, *_):
        if self.iteration == 200:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit(directory=tmp_path)
    assert_equal(fit(directory=tmp_path), fit())


def test_a_run_can_be_made_longer_and_keeps_two_snapshots(tmp_path):
    for number in (100, 200, 300):
        longer = fit(directory=tmp_path, num_iterations=number)
    assert_equal(longer, fit())
    assert steps_in(tmp_path) == [200, 300]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "run"
    for number in (100, 200):
        fit(directory=directory, num_iterations=number)
    return directory


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": 1}, "key: "),
        ({"y": Y + 1.0}, "data: "),
        ({"guide": PLAIN}, "guide: own_guide there, AutoNormal here"),
        ({"num_seeds": 2}, "settings num_seeds: 1 there, 2 here"),
        ({"optimiser": optax.sgd(0.1)}, "another run"),
        ({"num_particles": 3}, "program: "),
    ],
    ids=["key", "data", "guide", "seeds", "optimiser", "particles"],
)
def test_another_runs_checkpoint_is_refused(options, words, copied):
    before = contents(copied)
    with pytest.raises(ValueError, match=words) as caught:
        fit(directory=copied, **options)
    assert "is of another run" in str(caught.value)
    assert str(copied) in str(caught.value)
    assert contents(copied) == before


def test_somebody_elses_checkpoint_is_refused(tmp_path):
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(7, args=ocp.args.StandardSave({"weights": np.ones(3)}))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"not of relbo\.fit"):
        fit(directory=tmp_path)
    assert contents(tmp_path) == before


def _empty(path):
    shutil.rmtree(path)
    path.mkdir()


def _without_state(path):
    shutil.rmtree(path / "state")


def _without_description(path):
    shutil.rmtree(path / "about")


def _cut_short(path):
    largest = max(
        (file for file in (path / "state").rglob("*") if file.is_file()),
        key=lambda file: file.stat().st_size,
    )
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_empty, _without_state, _without_description, _cut_short])
def test_a_half_written_checkpoint_is_refused(damage, copied):
    damage(copied / "200")
    before = contents(copied)
    with pytest.raises(ValueError, match=r"checkpoint_dir: the checkpoint .*200 is not whole"):
        fit(directory=copied)
    assert contents(copied) == before
    assert steps_in(copied) == [100, 200]
    # The advice in the message is good.
    shutil.rmtree(copied / "200")
    assert_equal(fit(directory=copied), fit())


def test_changed_numbers_are_refused(copied, monkeypatch):
    from relbo._fitting import checkpoints

    original = checkpoints.digest
    monkeypatch.setattr(
        checkpoints, "digest", lambda arrays: original([np.asarray(x) + 1 for x in arrays])
    )
    with pytest.raises(ValueError, match="its numbers are not those that were written"):
        fit(directory=copied)


def test_what_a_kill_leaves_half_written_is_passed_over(copied):
    for name in ("300.orbax-checkpoint-tmp", "300.orbax-checkpoint-tmp-17"):
        shutil.copytree(copied / "200", copied / name)
        shutil.rmtree(copied / name / "about")
    assert_equal(fit(directory=copied), fit())
    assert 300 in steps_in(copied)


def test_a_file_is_no_directory(tmp_path):
    path = tmp_path / "file"
    path.write_text("something")
    with pytest.raises(ValueError, match="is not a directory"):
        fit(directory=path)
    assert path.read_text() == "something"


SCRIPT = """
import sys
import jax, jax.random as jr, numpy as np
jax.config.update("jax_platforms", "cpu")
import relbo
from test_checkpoints import Y, model
fitted = relbo.fit(
    jr.key(0), model, (Y,), {"batch_size": 2}, guide=relbo.AutoRefined(model, num_steps=2),
    batch_size=2, num_iterations=int(sys.argv[3]), early_stopping=False, progress=False,
    checkpoint_dir=sys.argv[1] if sys.argv[1] != "none" else None,
)
np.savez(sys.argv[2], losses=fitted.losses, **fitted.params)
"""


def start(directory, out, number):
    here = str(Path(__file__).resolve().parent)
    environment = {**os.environ, "PYTHONPATH": here, "PYTHONHASHSEED": "random"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory), str(out), str(number)], env=environment
    )


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path):
    number, directory = 20_000, tmp_path / "run"
    assert start("none", tmp_path / "whole.npz", number).wait() == 0
    num_kills = 0
    for wait in (0.0, 0.013, 0.3):
        process = start(directory, tmp_path / "killed.npz", number)
        known = set(steps_in(directory)) if directory.exists() else set()
        while process.poll() is None:
            if directory.exists() and set(steps_in(directory)) - known:
                time.sleep(wait)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        num_kills += process.wait() == -signal.SIGKILL
    assert num_kills >= 2
    assert start(directory, tmp_path / "resumed.npz", number).wait() == 0
    whole, resumed = (np.load(tmp_path / name) for name in ("whole.npz", "resumed.npz"))
    assert set(whole) == set(resumed)
    for name in whole:
        np.testing.assert_array_equal(whole[name], resumed[name])
