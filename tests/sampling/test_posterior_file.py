"""Saving and loading posteriors, whole and damaged ones."""

import json

import numpy as np
import pytest

from relbo.sampling import Posterior
from relbo.sampling.evidence import LogWeights
from relbo.sampling.findings import Finding


@pytest.fixture
def posterior():
    rng = np.random.default_rng(0)
    return Posterior(
        {"x": rng.normal(size=(4, 6)), "part/y": rng.normal(size=(4, 6, 2))},
        num_draws=24,
        sample_stats={"lp": rng.normal(size=(4, 6)), "acceptance_rate": np.full((4, 6), 0.8)},
        num_superchains=2,
        step_size=0.5,
        log_weights=LogWeights(rng.normal(size=5), rng.normal(size=5)),
        findings=[Finding("Something was seen.", is_fatal=False)],
        seconds={"fit": 1.5},
        procedure="Chains ran.",
    )


def assert_refused(path):
    with pytest.raises(ValueError, match="is not a posterior that"):
        Posterior.load(path)


def test_a_loaded_posterior_is_the_saved_one(posterior, tmp_path):
    loaded = Posterior.load(posterior.save(tmp_path / "run"))
    for name, values in posterior.chains.items():
        np.testing.assert_array_equal(loaded.chains[name], values)
    assert loaded.findings == posterior.findings
    assert loaded.seconds == posterior.seconds
    assert loaded.procedure == "Chains ran."
    assert loaded.log_evidence == posterior.log_evidence
    assert str(loaded.check()) == str(posterior.check())


def test_names_with_dots_are_different_files(posterior, tmp_path):
    paths = [posterior.save(tmp_path / name) for name in ("run.1", "run.2", "run.2.npz")]
    assert [path.name for path in paths] == ["run.1.npz", "run.2.npz", "run.2.npz"]
    assert sorted(tmp_path.iterdir()) == paths[:2]


def test_numbers_of_numpy_are_saved(posterior, tmp_path):
    posterior.num_draws, posterior.step_size = np.int64(12), np.float32(0.25)
    posterior.findings = (Finding("Seen.", is_fatal=np.bool_(True)),)
    loaded = Posterior.load(posterior.save(tmp_path / "run"))
    assert (loaded.num_draws, loaded.step_size) == (12, 0.25)
    assert loaded.findings[0].is_fatal is True


def test_cut_files_are_refused(posterior, tmp_path):
    path = posterior.save(tmp_path / "run")
    content = path.read_bytes()
    for length in np.linspace(0, len(content) - 1, 60).astype(int):
        path.write_bytes(content[:length])
        assert_refused(path)


def test_files_with_flipped_bytes_are_refused_or_unchanged(posterior, tmp_path):
    """An archive has bytes without a meaning, such as dates; other damage is noticed."""
    path = posterior.save(tmp_path / "run")
    content, rng = path.read_bytes(), np.random.default_rng(1)
    num_refused = 0
    for place in rng.integers(len(content), size=400):
        damaged = bytearray(content)
        damaged[place] ^= rng.integers(1, 256)
        path.write_bytes(damaged)
        try:
            loaded = Posterior.load(path)
        except ValueError as error:
            assert "is not a posterior that" in str(error)  # noqa: PT017
            num_refused += 1
        else:
            assert repr(loaded) == repr(posterior)
            np.testing.assert_array_equal(loaded.chains["x"], posterior.chains["x"])
            np.testing.assert_array_equal(
                loaded.sample_stats["lp"], posterior.sample_stats["lp"]
            )
    assert num_refused > 200


def rewrite(path, change_header=None, **arrays):
    """Changes some entries of the header and some arrays, which `None` removes."""
    with np.load(path) as file:
        content = dict(file)
    header = json.loads(str(content["header"])) | (change_header or {})
    content["header"] = np.array(json.dumps(header))
    content |= {name.replace("__", "/"): values for name, values in arrays.items()}
    np.savez(path, **{name: values for name, values in content.items() if values is not None})


@pytest.mark.parametrize(
    "change",
    [
        {"num_draws": -3},
        {"num_draws": 0},
        {"num_draws": 25},
        {"num_draws": 2.5},
        {"num_draws": True},
        {"num_draws": "24"},
        {"num_draws": None},
        {"num_superchains": 3},
        {"num_superchains": 0},
        {"num_superchains": []},
        {"step_size": -1.0},
        {"step_size": float("nan")},
        {"step_size": "small"},
        {"findings": None},
        {"findings": [["text"], 3]},
        {"findings": [[1, True, ""]]},
        {"findings": [["text", "yes", ""]]},
        {"findings": [["text", True, "", 4]]},
        {"seconds": [1.0]},
        {"seconds": {"fit": "long"}},
        {"seconds": {"fit": -1.0}},
        {"unknown": 1},
        {"format": "relbo posterior 1"},
        {"format": ["relbo posterior 2"]},
    ],
    ids=str,
)
def test_wrong_headers_are_refused(change, posterior, tmp_path):
    path = posterior.save(tmp_path / "run")
    rewrite(path, change)
    assert_refused(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"header": None},
        {"header": np.array("[]")},
        {"header": np.array("[" * 100_000)},
        {"header": np.arange(3)},
        {"chains__x": None, "chains__part__y": None},
        {"chains__x": np.zeros((6, 4))},
        {"chains__x": np.zeros(24)},
        {"chains__x": np.zeros(())},
        {"chains__x": np.full((4, 6), "text")},
        {"chains__x": np.full((4, 6), 1j)},
        {"stats__lp": None},
        {"stats__lp": np.zeros((6, 4))},
        {"stats__lp": np.zeros((4, 6, 1))},
        {"stats__acceptance_rate": np.zeros((4, 5))},
        {"weights__forward": None},
        {"weights__backward": np.zeros((5, 1))},
        {"weights__backward": np.zeros(0)},
        {"weights__other": np.zeros(5)},
        {"other": np.zeros(5)},
    ],
    ids=lambda arrays: ", ".join(arrays),
)
def test_wrong_arrays_are_refused(arrays, posterior, tmp_path):
    path = posterior.save(tmp_path / "run")
    rewrite(path, **arrays)
    assert_refused(path)


def test_other_files_are_refused(tmp_path):
    assert_refused(tmp_path / "missing.npz")
    assert_refused(tmp_path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    assert_refused(tmp_path / "array.npy")
    np.savez(tmp_path / "objects.npz", header=np.array([{}], dtype=object))
    assert_refused(tmp_path / "objects.npz")
