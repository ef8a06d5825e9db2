"""`relbo fit`: what it writes and says, and what it refuses."""

from pathlib import Path

import jax
import numpy as np
import pytest

import relbo
from relbo import cli

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

MODEL = """
import numpyro
import numpyro.distributions as dist

number = 3

def model(y, sigma=1.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", 3):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)

def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate).expand(y.shape), obs=y)

def unpriored(y):
    mean = numpyro.param("mean", 0.0)
    numpyro.sample("y", dist.Normal(mean, 1.0).expand(y.shape), obs=y)

def broken(y):
    return y @ 1.0
"""
GOOD = '{"y": [1.0, 2.0, 3.0]}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with a model and its data in it, and the process in it."""
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "good.json").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*argv):
    return cli.main(["fit", *map(str, argv)])


def assert_refused(capsys, code, *words):
    """One line that names what is wrong, code 2, and nothing else."""
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1, captured.err
    assert "Traceback" not in captured.err
    for word in words:
        assert word in captured.err


def test_writes_the_posterior_and_says_whether_to_trust_it(folder, capsys):
    argv = ("m.py:model", "--data", "good.json", "--draws", 640, "--out", "out")
    assert fit(*argv) == 0
    out = capsys.readouterr().out
    names = ["posterior.nc", "posterior.npz", "summary.txt"]
    names += [f"{figure}.{kind}" for figure in ("trace", "rank") for kind in ("png", "svg")]
    assert sorted(p.name for p in (folder / "out").iterdir()) == sorted(names)
    assert "640 draws" in out
    assert "Trust it." in out
    for name in ("posterior.nc", "summary.txt", "trace.png", "rank.png"):
        assert str(Path("out") / name) in out
    assert "Trust it." in (folder / "out" / "summary.txt").read_text()

    posterior = relbo.Posterior.load(folder / "out" / "posterior.npz")
    # The exact posterior has precision 3 + 1 / 100.
    draws = posterior.draws["mean"]
    assert draws.shape == (640,)
    assert draws.dtype == np.float64
    assert draws.mean() == pytest.approx(6 / 3.01, abs=0.12)
    assert draws.std() == pytest.approx(3.01**-0.5, rel=0.15)
    assert posterior.log_evidence == pytest.approx(_log_evidence(), abs=0.05)
    _assert_netcdf_holds(folder / "out" / "posterior.nc", posterior.chains["mean"])


def _log_evidence():
    y = np.array([1.0, 2.0, 3.0])
    covariance = np.eye(3) + 100.0
    quadratic = y @ np.linalg.solve(covariance, y)
    return -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])


def _assert_netcdf_holds(path, values):
    import h5netcdf

    with h5netcdf.File(path) as file:
        np.testing.assert_array_equal(file["posterior"].variables["mean"][...], values)
        assert {"lp", "acceptance_rate"} <= set(file["sample_stats"].variables)


def test_leaves_the_precision_of_its_caller_alone(folder, capsys):
    before = jax.config.jax_enable_x64
    assert fit("m.py:model", "--data", "nothing.json") == 2
    assert jax.config.jax_enable_x64 == before


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("none.py:model", ["none.py", "no such file"]),
        ("m.py:modle", ["m.py", "'modle'", "model"]),
        ("m.py:number", ["'number'", "int"]),
        ("m.py", ["m.py", "FILE.py:MODEL"]),
        ("m.py:", ["FILE.py:MODEL"]),
        ("syntax.py:model", ["syntax.py, line 2", "not Python"]),
        ("raises.py:model", ["raises.py, line 1", "ZeroDivisionError"]),
        ("imports.py:model", ["imports.py, line 1", "no_such_module"]),
        ("m.txt:model", ["m.txt", ".py"]),
        ("m.py:broken", ["m.py, line 21", "y (3,)"]),
        ("m.py:unpriored", ["mean", "--train-steps"]),
    ],
)
def test_refuses_a_wrong_model(folder, capsys, target, words):
    (folder / "syntax.py").write_text("x = 1\ndef model(:\n")
    (folder / "raises.py").write_text("x = 1 / 0\n")
    (folder / "imports.py").write_text("import no_such_module\n")
    (folder / "m.txt").write_text(MODEL)
    assert_refused(capsys, fit(target, "--data", "good.json"), *words)
    assert not (folder / "relbo-out").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.json", None, ["no such file"]),
        ("d.txt", GOOD, [".json, .npz or .csv"]),
        ("d.json", '{\n"y": [1.0,\n}', ["line 3", "not JSON"]),
        ("d.json", "", ["not JSON"]),
        ("d.json", "[1.0, 2.0]", ["JSON object", "a list"]),
        ("d.json", b"\xff\xfe\x00", ["UTF-8"]),
        ("d.json", '{"sigma": 2.0}', ["no 'y'", "'sigma'"]),
        ("d.json", "{}", ["no 'y'", "nothing"]),
        ("d.json", '{"y": [1, 2, 3], "sigme": 1.0}', ["'sigme'", "did you mean 'sigma'?"]),
        ("d.json", '{"y": [1.0, 2.0]}', ["(2,)", "3"]),
        ("d.json", '{"y": [[1.0, 2.0], [3.0]]}', ["'y'", "one length"]),
        ("d.json", '{"y": [1.0, NaN, 3.0]}', ["'y'", "NaN", "index 1"]),
        ("d.json", '{"y": [1.0, null, 3.0]}', ["'y'", "null"]),
        ("d.json", '{"y": [1, 2, 3], "sigma": NaN}', ["'sigma' is NaN"]),
        ("d.json", '{"y": ["a", "b", "c"]}', ["'y'", "numbers"]),
        ("d.json", '{"y": {"a": 1}}', ["'y'", "object"]),
        ("d.csv", "", ["is empty"]),
        ("d.csv", "y\n", ["no rows"]),
        ("d.csv", "1\n2\n3\n", ["name the columns"]),
        ("d.csv", "y\n1\nnan\n3\n", ["'y'", "NaN"]),
        ("d.csv", "y\n1\nNA\n3\n", ["line 3", "'y' is missing"]),
        ("d.csv", "y\n1\ntwo\n3\n", ["line 3", "two"]),
        ("d.csv", "y,sigma\n1,2\n3\n", ["line 3", "1 values under 2"]),
        ("d.csv", "y,y\n1,2\n", ["'y' stands twice"]),
        ("d.csv", "y;sigma\n1;2\n", ["commas"]),
        ("d.npz", b"no zip", ["npz"]),
        ("d.npz", b"", ["npz"]),
    ],
)
def test_refuses_wrong_data(folder, capsys, name, content, words):
    path = folder / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(capsys, fit("m.py:model", "--data", name), *words)
    assert not (folder / "relbo-out").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([1.0, np.nan, 2.0]), ["'y'", "NaN"]),
        (np.array(["a", "b", "c"]), ["'y'", "numbers"]),
        (np.array([{}, 1, 2], dtype=object), ["npz"]),
        (np.ones((2, 3, 2)), ["(2, 3, 2)"]),
    ],
)
def test_refuses_wrong_arrays(folder, capsys, array, words):
    np.savez(folder / "d.npz", y=array)
    assert_refused(capsys, fit("m.py:model", "--data", "d.npz"), *words)


def test_refuses_data_off_the_support(folder, capsys):
    (folder / "d.json").write_text('{"y": [1, 2, -3]}')
    assert_refused(capsys, fit("m.py:counts", "--data", "d.json"), "'y'", "support")


def test_needs_data_where_the_model_does(folder, capsys):
    assert_refused(capsys, fit("m.py:model"), "--data", "'y'")


@pytest.mark.parametrize(
    "option", [("--draws", 0), ("--seed", -1), ("--train-steps", "x"), ("--kernel", "nuts")]
)
def test_refuses_wrong_options(folder, capsys, option):
    code = fit("m.py:model", "--data", "good.json", *option)
    assert_refused(capsys, code, option[0], str(option[1]))


def test_refuses_an_output_directory_that_is_a_file(folder, capsys):
    code = fit("m.py:model", "--data", "good.json", "--out", "good.json")
    assert_refused(capsys, code, "--out good.json")
    assert (folder / "good.json").read_text() == GOOD


@pytest.mark.slow
def test_starts_from_a_trained_guide(folder, capsys):
    argv = ("--kernel", "sgld", "--refine-steps", 2, "--train-steps", 200, "--draws", 640)
    assert fit("m.py:model", "--data", "good.json", *argv) == 0
    assert "guide: " in capsys.readouterr().out
    posterior = relbo.Posterior.load(folder / "relbo-out" / "m" / "posterior.npz")
    assert posterior.draws["mean"].mean() == pytest.approx(6 / 3.01, abs=0.12)
