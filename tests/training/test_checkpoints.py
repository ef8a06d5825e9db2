"""Checkpoints: a stopped run ends as if it had not been, and other runs are refused."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optax
import pytest
from normal_mean import BACK_OFF, PLAIN, TOO_FAST, UNTIL_THE_END, Y, own_guide
from normal_mean import fit as fit_normal_mean
from numpyro.infer import Trace_ELBO

import relbo
from relbo import Starts
from relbo.training import Result
from relbo.training.loop import TrainingLoop
from relbo.training.program import forget_programs


def fit(guide=own_guide, directory=None, **options):
    options = {"stopping": UNTIL_THE_END, **options}
    return fit_normal_mean(guide, checkpoint_dir=directory, **options)


def contents(directory):
    """Reads all files below a directory."""
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
        np.testing.assert_array_equal(one.seed_params[name], other.seed_params[name])
    np.testing.assert_array_equal(one.losses, other.losses)
    np.testing.assert_array_equal(one.seed_losses, other.seed_losses)
    assert one.result is other.result
    assert one.message == other.message


VARIANTS = {
    "function": {},
    "warm start": {"guide": PLAIN},
    "minibatches": {"kwargs": {"batch_size": 4}, "batch_size": 4},
    "seeds that back off": {
        "starts": Starts(num_seeds=2),
        "stopping": BACK_OFF,
        "optimiser": TOO_FAST,
    },
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "function" else n for n in VARIANTS],
)
def test_a_stopped_run_ends_as_if_it_had_not_been(name, tmp_path):
    options = {"num_iterations": 250, "stopping": UNTIL_THE_END, **VARIANTS[name]}
    whole = fit(**options)
    at_once = dataclasses.replace(options["stopping"], seconds=0.0)
    first = fit(directory=tmp_path, **{**options, "stopping": at_once})
    assert first.result is Result.OUT_OF_TIME
    assert first.num_iterations == 100
    assert steps_in(tmp_path) == [100]
    forget_programs()
    assert_equal(fit(directory=tmp_path, **options), whole)
    # A run that has ended is read, not run again.
    assert_equal(fit(directory=tmp_path, **options), whole)


def test_an_interrupted_run_can_be_resumed(tmp_path, monkeypatch):
    def interrupt(self, *_):
        if self.iteration == 200:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_show", interrupt)
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
        ({"starts": Starts(num_seeds=2)}, "settings num_seeds: 1 there, 2 here"),
        ({"optimiser": optax.sgd(0.1)}, "program: "),
        ({"loss": Trace_ELBO(3)}, "program: "),
    ],
    ids=["key", "data", "guide", "seeds", "optimiser", "draws"],
)
def test_the_checkpoint_of_another_run_is_refused(options, words, copied):
    before = contents(copied)
    with pytest.raises(ValueError, match=words) as caught:
        fit(directory=copied, **options)
    assert "is of another run" in str(caught.value)
    assert str(copied) in str(caught.value)
    assert contents(copied) == before


def test_another_learning_rate_is_another_run(tmp_path):
    slow, fast = (
        {"optimiser": optax.sgd(rate), "num_iterations": 100} for rate in (0.01, 0.02)
    )
    fit(directory=tmp_path, **slow)
    with pytest.raises(ValueError, match=r"is of another run\. It differs in program"):
        fit(directory=tmp_path, **fast)


def test_the_checkpoint_of_another_program_is_refused(tmp_path):
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
def test_an_incomplete_checkpoint_is_refused(damage, copied):
    damage(copied / "200")
    before = contents(copied)
    with pytest.raises(ValueError, match=r"checkpoint_dir: the checkpoint .*200 is incomplete"):
        fit(directory=copied)
    assert contents(copied) == before
    assert steps_in(copied) == [100, 200]
    # The advice of the message works.
    shutil.rmtree(copied / "200")
    assert_equal(fit(directory=copied), fit())


def test_changed_numbers_are_refused(copied):
    files = [file for file in (copied / "200" / "about").iterdir() if file.is_file()]
    (description,) = (file for file in files if b'"digest"' in file.read_bytes())
    changed = re.sub(r'"digest": "\w+"', '"digest": "0"', description.read_text())
    description.write_text(changed)
    with pytest.raises(ValueError, match="its numbers are not those that were written"):
        fit(directory=copied)


def test_temporary_files_of_a_killed_run_are_ignored(copied):
    for name in ("300.orbax-checkpoint-tmp", "300.orbax-checkpoint-tmp-17"):
        shutil.copytree(copied / "200", copied / name)
        shutil.rmtree(copied / name / "about")
    assert_equal(fit(directory=copied), fit())
    assert 300 in steps_in(copied)


def test_a_file_is_refused_as_a_directory(tmp_path):
    path = tmp_path / "file"
    path.write_text("something")
    with pytest.raises(ValueError, match="is not a directory"):
        fit(directory=path)
    assert path.read_text() == "something"


SCRIPT = """
import sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
from normal_mean import REFINED, UNTIL_THE_END, fit_minibatches
fitted = fit_minibatches(
    guide=REFINED, num_iterations=int(sys.argv[3]), stopping=UNTIL_THE_END,
    checkpoint_dir=sys.argv[1] if sys.argv[1] != "none" else None,
)
np.savez(sys.argv[2], losses=fitted.losses, **fitted.params)
"""


def start(directory, out, number):
    places = Path(__file__).resolve().parent, Path(relbo.__file__).resolve().parent.parent
    path = os.pathsep.join(map(str, places))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory), str(out), str(number)], env=environment
    )


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been_in_a_new_process(tmp_path):
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
