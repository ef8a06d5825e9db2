"""The cache of compiled programs: a line switches it on, and programs are found again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import jax, sys
import jax.numpy as jnp
import numpyro, numpyro.distributions as dist
import relbo
jax.jit(lambda x: x + 1)(1.0)  # JAX has looked for a cache before
hits = []
relbo.use_compilation_cache(sys.argv[1])
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
def model():
    for name in ("a", "b", "c", "d"):
        numpyro.sample(name, dist.Normal())
options = dict(num_iterations=1, progress=False, starts=relbo.Starts(warm=False))
relbo.fit(0, model, guide=relbo.AutoRefined(model, num_steps=1), **options)
print(sum(event.endswith("cache_misses") for event in hits))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    def misses(seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        return int(done.stdout)

    assert misses("1") > 0
    assert misses("2") == 0


def test_the_cache_is_in_the_users_folder_by_default(tmp_path):
    code = "import relbo; print(relbo.use_compilation_cache())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    assert Path(found) == tmp_path / "relbo" / "jax"
    assert Path(found).is_dir()
