"""Several devices give what one does; one device is left alone."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import mesh_cases
import relbo
from relbo._mesh import spread_over
from relbo.data import Rows

HERE = Path(__file__).resolve().parent
FOUR = "--xla_force_host_platform_device_count=4"
TOLERANCE = {"rtol": 2e-4, "atol": 2e-4}


def environment(**more):
    source = str(Path(relbo.__file__).resolve().parent.parent)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(HERE.parent / ".jax_cache")}
    return {**os.environ, **cache, "PYTHONPATH": source, **more}


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    out = tmp_path_factory.mktemp("four")
    script = [sys.executable, HERE / "mesh_cases.py", out, *mesh_cases.CASES]
    subprocess.run(script, env=environment(XLA_FLAGS=FOUR), check=True, timeout=400)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", mesh_cases.CASES)
def test_four_devices_give_what_one_does(name, on_four):
    expected, found = mesh_cases.CASES[name](None), np.load(on_four / f"{name} 0.npz")
    assert set(expected) == set(found)
    for part in expected:
        np.testing.assert_allclose(found[part], expected[part], **TOLERANCE)


SHARES = """
import jax, numpy as np, mesh_cases
from jax.sharding import Mesh
from relbo import training
from relbo._fitting.run import Run

mesh_cases.strict()
flops = []

class Noted(Run):
    def _advance(self, number):
        data = self.feed(0, 100)
        inputs = (self.carry, self._control(), np.int32(0), np.int32(100), data)
        compiled = self.trainer.chunk.lower(*inputs).compile()
        flops.append(compiled.cost_analysis()["flops"])
        return super()._advance(number)

training.Run = Noted
rows = lambda mesh: mesh_cases.arrays_of(mesh_cases.fit_rows(mesh, num_iterations=100))
for case in (rows, mesh_cases.particles):
    flops.clear()
    one, four = (case(mesh) for mesh in (Mesh(jax.devices()[:1], ("d",)), None))
    for name in one:
        np.testing.assert_allclose(one[name], four[name], rtol=1e-3, atol=1e-4)
    print(flops[-1] / flops[0])
"""


def test_the_work_is_shared():
    """Each of four devices does a part of a step, and together they do the same."""
    script = [sys.executable, "-c", SHARES]
    four = environment(XLA_FLAGS=FOUR)
    done = subprocess.run(
        script, env=four, cwd=HERE, check=True, timeout=200, stdout=subprocess.PIPE
    )
    shares = [float(word) for word in done.stdout.split()]
    assert len(shares) == 2
    # What is not shared, such as the optimiser, is much of so small a model.
    assert all(share < 0.6 for share in shares)


def test_one_device_is_left_alone():
    assert spread_over(None) is None
    assert spread_over(Mesh(jax.devices()[:1], ("anything",))) is None


def test_rows_on_disk_come_in_the_order_of_an_array(tmp_path):
    np.save(tmp_path / "rows.npy", mesh_cases.DATA)
    on_disk = mesh_cases.fit_rows(data=Rows.open(tmp_path / "rows.npy"))
    np.testing.assert_allclose(on_disk.losses, mesh_cases.fit_rows().losses, rtol=1e-6)


def test_rows_are_in_double_where_all_is(x64):
    rows = Rows(mesh_cases.DATA.astype(float) / 3.0)  # not to be had in single
    fitted = mesh_cases.fit_rows(data=rows, num_iterations=100)
    expected = mesh_cases.fit_rows(data=rows.source, num_iterations=100)
    assert fitted.losses.dtype == np.float64
    np.testing.assert_allclose(fitted.losses, expected.losses, rtol=1e-12)


def test_rows_are_checkpointed_and_told_apart(tmp_path):
    run = lambda number, data=mesh_cases.DATA: mesh_cases.fit_rows(
        data=Rows(data), num_iterations=number, checkpoint_dir=tmp_path
    )
    run(100)
    resumed = run(200)
    whole = mesh_cases.fit_rows(data=Rows(mesh_cases.DATA))
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    with pytest.raises(ValueError, match="data: "):
        run(300, mesh_cases.DATA + 1)


def test_rows_come_in_any_order_and_more_than_once():
    rows = Rows(mesh_cases.DATA)
    wanted = np.array([[5, 3], [3, 60]])
    np.testing.assert_array_equal(rows.fetch(wanted), mesh_cases.DATA[wanted])
    assert len(rows) == mesh_cases.NUM


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mesh_cases.fit_rows(mesh=4), "mesh: expected a jax.sharding.Mesh, got int"),
        (
            lambda: mesh_cases.fit_rows(data=Rows(mesh_cases.DATA), batch_size=None),
            "batch_size",
        ),
        (lambda: Rows([1.0, 2.0]), "source: expected an array"),
        (lambda: Rows(np.zeros(())), "source: expected a row a data point"),
    ],
    ids=["mesh", "batch_size", "list", "number"],
)
def test_mistakes_have_names(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_source_that_fails_ends_the_fit():
    class Broken(Rows):
        def fetch(self, rows):
            if np.size(rows) > 16:
                raise OSError("the disk is gone")
            return super().fetch(rows)

    with pytest.raises(OSError, match="the disk is gone"):
        mesh_cases.fit_rows(data=Broken(mesh_cases.DATA))
