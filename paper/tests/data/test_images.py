"""The image files of the package, and the user's own."""

import gzip
import struct

import numpy as np
import pytest

from relbo_paper.data import ImageSplit, binarized_mnist, fashion_mnist
from relbo_paper.data import images as _images
from relbo_paper.data.binary import draw_binary, pack, threshold, unpack

LOADERS = (binarized_mnist, fashion_mnist)


def idx_bytes(array):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return head + array.astype(np.uint8).tobytes()


def grey_images(number, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (number, 28, 28))


def write_idx(folder, *, compressed, num_train=12, num_test=5):
    folder.mkdir(exist_ok=True)
    for part, number in (("train", num_train), ("t10k", num_test)):
        arrays = {"images-idx3": grey_images(number), "labels-idx1": np.arange(number) % 10}
        for kind, array in arrays.items():
            content = idx_bytes(array)
            name = f"{part}-{kind}-ubyte" + (".gz" if compressed else "")
            (folder / name).write_bytes(gzip.compress(content) if compressed else content)


def npz_arrays(number=4):
    images = threshold(grey_images(number)).reshape(number, 784)
    parts = ("train", "valid", "test")
    labels = {f"{part}_labels": np.arange(number) for part in parts}
    return {**dict.fromkeys(parts, images), **labels}


@pytest.mark.parametrize("load", LOADERS)
def test_bundled_images_are_complete(load):
    splits = load()
    assert [len(part.images) for part in splits] == [50_000, 10_000, 10_000]
    for images, labels in splits:
        assert images.dtype == np.uint8
        assert images.shape[1:] == (784,)
        assert images.max() == 1
        assert set(labels.tolist()) == set(range(10))


def test_first_labels_are_those_of_mnist():
    """As every listing of the original files has them."""
    splits = binarized_mnist()
    assert splits.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert splits.test.labels[:5].tolist() == [7, 2, 1, 0, 4]


def test_share_of_ones_is_the_mean_grey_level():
    """MNIST's mean level is 0.1307 on the 60,000 training images."""
    splits = binarized_mnist()
    seen = np.concatenate([splits.train.images, splits.valid.images])
    assert abs(seen.mean() - 0.1307) < 0.0002


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_bundled_files_are_refused(monkeypatch, tmp_path, load, damage):
    if damage == "changed":
        for name in ("binarized_mnist.xz", "fashion_mnist.xz"):
            (tmp_path / name).write_bytes(b"not it")
    monkeypatch.setattr(_images, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"mnist\.xz (is damaged|cannot be read)"):
        load()


def test_unpacking_inverts_packing():
    images = threshold(grey_images(7)).reshape(7, 784)
    labels = np.arange(7, dtype=np.uint8)
    for ours, theirs in zip(unpack(pack(images, labels)), (images, labels), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pixels_are_one_with_the_grey_level_as_probability():
    grey = np.tile(np.arange(256, dtype=np.uint8), (4000, 1))
    frequencies = draw_binary(grey).mean(axis=0)
    assert frequencies[0] == 0
    assert frequencies[255] == 1
    np.testing.assert_allclose(frequencies, np.arange(256) / 255, atol=5 * 0.5 / 4000**0.5)


def test_draw_does_not_depend_on_later_images():
    grey = grey_images(2100).reshape(2100, 784)
    np.testing.assert_array_equal(draw_binary(grey)[:1500], draw_binary(grey[:1500]))


@pytest.mark.parametrize("compressed", [True, False])
def test_own_idx_files_are_read(tmp_path, compressed):
    write_idx(tmp_path, compressed=compressed)
    splits = fashion_mnist(tmp_path)
    assert [len(part.labels) for part in splits] == [10, 2, 5]
    expected = threshold(grey_images(12)).reshape(12, 784)
    np.testing.assert_array_equal(splits.valid.images, expected[10:])
    assert splits.valid.labels.tolist() == [0, 1]
    assert set(np.unique(binarized_mnist(tmp_path).train.images)) == {0, 1}


def test_idx_files_in_a_named_folder_are_read(tmp_path):
    write_idx(tmp_path / "fashion-mnist", compressed=True)
    assert len(fashion_mnist(str(tmp_path)).test.labels) == 5
    with pytest.raises(ValueError, match="nor a folder with that file called"):
        binarized_mnist(tmp_path)


@pytest.mark.parametrize("form", ["packed", "flat", "square", "bool"])
def test_own_npz_file_is_read(tmp_path, form):
    arrays = npz_arrays()
    expected = arrays["train"]
    forms = {
        "packed": np.packbits(expected, axis=1),
        "flat": expected.astype(np.float32),
        "square": expected.reshape(-1, 28, 28),
        "bool": expected.astype(bool),
    }
    arrays |= dict.fromkeys(("train", "valid", "test"), forms[form])
    np.savez(tmp_path / "binarized_mnist.npz", **arrays)
    splits = binarized_mnist(tmp_path)
    np.testing.assert_array_equal(splits.test.images, expected)
    assert splits.test.images.dtype == np.uint8
    assert splits.test.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": np.full((4, 784), 7)}, "'train' must contain only zeros and ones"),
        (
            {"valid": np.zeros((4, 100), np.uint8)},
            r"'valid' must be \[n, 784\].*uint8\[4, 100\]",
        ),
        ({"test_labels": np.zeros(3)}, "'test_labels' must contain 4 labels"),
    ],
)
def test_npz_file_with_wrong_arrays_is_refused(tmp_path, change, words):
    np.savez(tmp_path / "binarized_mnist.npz", **(npz_arrays() | change))
    with pytest.raises(ValueError, match=rf"binarized_mnist\.npz: {words}"):
        binarized_mnist(tmp_path)


def test_npz_file_with_missing_arrays_is_refused(tmp_path):
    arrays = npz_arrays()
    del arrays["valid_labels"]
    np.savez(tmp_path / "fashion_mnist.npz", **arrays)
    with pytest.raises(ValueError, match=r"fashion_mnist\.npz: the arrays \['valid_labels'\]"):
        fashion_mnist(tmp_path)


def test_damaged_npz_file_is_refused(tmp_path):
    (tmp_path / "binarized_mnist.npz").write_bytes(b"PK\3\4 and nothing more")
    with pytest.raises(ValueError, match=r"binarized_mnist\.npz: not a readable npz file"):
        binarized_mnist(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:100], "is damaged|too short"),
        (lambda content: b"something else", "cannot be read|not an idx file"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1]), "too short or too long"),
        (lambda content: gzip.compress(gzip.decompress(content)[:6]), "ends within its header"),
    ],
)
def test_damaged_idx_file_is_refused(tmp_path, damage, words):
    write_idx(tmp_path, compressed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"t10k-images-idx3-ubyte\.gz: .*({words})"):
        binarized_mnist(tmp_path)


def test_idx_files_of_different_lengths_are_refused(tmp_path):
    write_idx(tmp_path, compressed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3)))
    with pytest.raises(ValueError, match="train-labels: expected 12 labels"):
        fashion_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte: the file does not exist"):
        fashion_mnist(tmp_path)


def test_missing_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a directory"):
        binarized_mnist(tmp_path / "nowhere")


def test_evenly_returns_evenly_spaced_images():
    split = ImageSplit(np.arange(10)[:, None], np.arange(10))
    assert split.evenly(4).labels.tolist() == [0, 2, 5, 7]
    with pytest.raises(ValueError, match="number: expected 1 to 10"):
        split.evenly(11)
