"""Several devices give what one device gives; a single device is used as usual."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import device_cases
import relbo
from relbo._devices import spread_over

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
    script = [sys.executable, HERE / "device_cases.py", out, *device_cases.CASES]
    subprocess.run(script, env=environment(XLA_FLAGS=FOUR), check=True, timeout=400)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", device_cases.CASES)
def test_four_devices_give_what_one_device_gives(name, on_four):
    expected, found = device_cases.CASES[name](None), np.load(on_four / f"{name} 0.npz")
    assert set(expected) == set(found)
    for part in expected:
        np.testing.assert_allclose(found[part], expected[part], **TOLERANCE)


SHARES = """
import jax, numpy as np, device_cases
from jax.sharding import Mesh
from relbo.training import _fit
from relbo.training.loop import TrainingLoop

device_cases.strict()
flops = []

class Noted(TrainingLoop):
    def _advance(self, num_iterations, deadline):
        compiled = self.program.chunk.lower(*self.inputs(num_iterations)).compile()
        flops.append(compiled.cost_analysis()["flops"])
        return super()._advance(num_iterations, deadline)

_fit.TrainingLoop = Noted
rows = lambda mesh: device_cases.arrays_of(device_cases.fit_rows(mesh, num_iterations=100))
for case in (rows, device_cases.draws):
    flops.clear()
    one, four = (case(mesh) for mesh in (Mesh(jax.devices()[:1], ("d",)), None))
    for name in one:
        np.testing.assert_allclose(one[name], four[name], rtol=1e-3, atol=1e-4)
    print(flops[-1] / flops[0])
"""


def test_devices_share_the_work():
    """Each of four devices does a part of an update, and the results agree."""
    script = [sys.executable, "-c", SHARES]
    four = environment(XLA_FLAGS=FOUR)
    done = subprocess.run(
        script, env=four, cwd=HERE, check=True, timeout=400, stdout=subprocess.PIPE
    )
    shares = [float(word) for word in done.stdout.split()]
    assert len(shares) == 2
    # The optimiser is not shared, and is a large part of a model this small.
    assert all(share < 0.6 for share in shares)


def test_a_single_device_is_not_spread_over():
    assert spread_over(None) is None
    assert spread_over(Mesh(jax.devices()[:1], ("anything",))) is None


@pytest.mark.usefixtures("wrong_types")
def test_a_wrong_mesh_is_named():
    with pytest.raises(ValueError, match=r"mesh: expected a jax\.sharding\.Mesh, got int"):
        spread_over(4)
