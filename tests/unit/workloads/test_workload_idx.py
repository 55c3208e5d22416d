"""Tests of the idx reader on MNIST files and on damaged or hostile files."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.base.errors import BadValue
from rigdyno.workloads.datasets import mnist
from rigdyno.workloads.datasets.mnist import read_idx


def idx(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def images(count, side=28):
    return np.arange(count * side * side).reshape(count, side, side) % 251


@pytest.fixture
def saved(tmp_path):
    def save(content, name="images"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return save


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_a_written_array_is_read_back(saved, name):
    array = images(3)
    assert np.array_equal(read_idx(saved(idx(array), name), 3), array)


@pytest.mark.parametrize("name", ["images", "images.gz"])
@pytest.mark.parametrize("cut", [1, 700])
def test_a_truncated_body_is_refused(saved, name, cut):
    with pytest.raises(BadValue, match=r"truncated: .* of the 2,352 bytes"):
        read_idx(saved(idx(images(3))[:-cut], name), 3)


def test_a_truncated_header_is_refused(saved):
    with pytest.raises(BadValue, match="ends inside its header"):
        read_idx(saved(idx(images(3))[:10]), 3)


def test_a_file_longer_than_its_header_says_is_refused(saved):
    with pytest.raises(BadValue, match="longer than the 2,352 bytes"):
        read_idx(saved(idx(images(3)) + b"x"), 3)


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\x0d\x03" + bytes(20), b"PK\x03\x04" + bytes(20)])
def test_a_wrong_magic_number_is_refused(saved, content):
    with pytest.raises(BadValue, match="isn't an idx file of bytes in 3 dimensions"):
        read_idx(saved(content), 3)


def test_labels_are_refused_as_images(saved):
    with pytest.raises(BadValue, match="isn't an idx file of bytes in 3 dimensions: it begins with 00 00 08 01"):
        read_idx(saved(idx(np.arange(5))), 3)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_a_huge_size_in_the_header_allocates_nothing(saved, name):
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, *(2**32 - 1,) * 3)
    with pytest.raises(BadValue, match=r"the header of .* claims"):
        read_idx(saved(header, name), 3)


GOOD_ARCHIVE = gzip.compress(idx(images(3)), mtime=0)  # its time would make the tests' names differ


@pytest.mark.parametrize(
    "content",
    [
        GOOD_ARCHIVE[: len(GOOD_ARCHIVE) // 2],
        b"not gzip at all",
        GOOD_ARCHIVE[:10] + b"\xff" * 40,  # no such block type
        GOOD_ARCHIVE[:-8] + bytes(8),  # another checksum
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, content):
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(BadValue, match="can't be read"):
        read_idx(path, 3)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadValue, match="can't be read"):
        read_idx(tmp_path / "none", 3)


@given(content=st.binary(max_size=64))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_an_array_or_one_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(b"\0\0\x08\x01" + content)
    claimed = int.from_bytes(content[:4], "big") if len(content) >= 4 else None
    if claimed == len(content) - 4:
        assert read_idx(path, 1).tobytes() == content[4:]
    else:
        with pytest.raises(BadValue, match=r"^[^\n]*$"):
            read_idx(path, 1)


def write_mnist(folder, train=40, test=20, suffix="", label_count=None):
    for prefix, count in (("train", train), ("t10k", test)):
        labels = np.arange(label_count if label_count is not None else count) % 10
        for ending, array in (("images-idx3-ubyte", images(count)), ("labels-idx1-ubyte", labels)):
            content = gzip.compress(idx(array)) if suffix else idx(array)
            (folder / f"{prefix}-{ending}{suffix}").write_bytes(content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_mnist_is_read(tmp_path, suffix):
    write_mnist(tmp_path, suffix=suffix)
    assert mnist.find_missing_file(tmp_path) is None
    train, test = mnist.read_folder(tmp_path)
    assert (train.images.shape, test.images.shape) == ((40, 28, 28), (20, 28, 28))
    assert list(test.labels[:3]) == [0, 1, 2]


def test_a_folder_that_lacks_a_file_is_refused(tmp_path):
    assert mnist.find_missing_file(tmp_path / "none") == f"no folder '{tmp_path / 'none'}'"
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert "has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz" in mnist.find_missing_file(tmp_path)
    with pytest.raises(BadValue, match="has no t10k-labels-idx1-ubyte"):
        mnist.read_folder(tmp_path)


def test_labels_that_do_not_fit_are_refused(tmp_path):
    write_mnist(tmp_path, label_count=7)
    with pytest.raises(BadValue, match="for 7 labels"):
        mnist.read_folder(tmp_path)
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(40)))
    with pytest.raises(BadValue, match="go up to 39: there are 10 classes"):
        mnist.read_folder(tmp_path)
