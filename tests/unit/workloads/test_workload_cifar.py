"""Tests of reading CIFAR-100: both versions, unpacked and packed, and truncated, wrong or hostile files."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile

import numpy as np
import pytest

from rigdyno.base.errors import BadValue
from rigdyno.workloads.datasets import cifar

COUNT = 6


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8)


LABELS = [3, 99, 0, 42, 7, 7]


def pickle_like_python_2(pixels, labels):
    """Return bytes as in the published file, from Python 2's cPickle: protocol 2, strings for bytes, numpy 1 names."""

    def short(text):
        return b"U" + struct.pack("B", len(text)) + text

    dtype = (
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    rows = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + short(b"b") + b"\x87R"
        + b"(K\x01" + b"K" + struct.pack("B", len(pixels)) + b"M\x00\x0c\x86" + dtype + b"\x89"
        + b"T" + struct.pack("<i", len(rows)) + rows + b"tb"
    )  # fmt: skip
    numbers = b"".join(b"K" + struct.pack("B", label) for label in labels)
    return b"\x80\x02}q\x01(" + short(b"data") + array + short(b"fine_labels") + b"](" + numbers + b"eu."


def document(images):
    return {"data": images.reshape(len(images), -1), "fine_labels": LABELS, "coarse_labels": LABELS, "filenames": ["a"]}


WRITERS = {"python 2": lambda images: pickle_like_python_2(images, LABELS)} | {
    f"protocol {protocol}": lambda images, protocol=protocol: pickle.dumps(document(images), protocol=protocol)
    for protocol in (2, 3, 4, 5)
}


@pytest.fixture(params=WRITERS)
def pickled(request, images):
    return WRITERS[request.param](images)


def put(folder, version, files, packed):
    folder.mkdir(exist_ok=True)
    if not packed:
        (folder / version).mkdir()
        for name, body in files.items():
            (folder / version / name).write_bytes(body)
        return
    with tarfile.open(folder / f"{version}.tar.gz", "w:gz") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(f"{version}/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))


def test_the_handwritten_python_2_file_is_a_real_pickle(images):
    found = pickle.loads(pickle_like_python_2(images, LABELS), encoding="latin1")
    assert np.array_equal(found["data"], images.reshape(COUNT, -1))
    assert found["fine_labels"] == LABELS


@pytest.mark.parametrize("packed", [False, True])
def test_the_python_version_is_read(tmp_path, images, pickled, packed):
    put(tmp_path, "cifar-100-python", {"train": pickled, "test": pickled}, packed)
    assert cifar.refusal(str(tmp_path)) is None
    source = cifar.open_dataset(str(tmp_path), seed=0, test_images=2)
    assert np.array_equal(source.train.images, images)
    assert source.train.labels.tolist() == LABELS
    assert np.array_equal(source.test.images, images[:2])


@pytest.mark.parametrize("packed", [False, True])
def test_the_binary_version_is_read(tmp_path, images, packed):
    body = b"".join(bytes([1, label]) + image.tobytes() for label, image in zip(LABELS, images, strict=True))
    put(tmp_path, "cifar-100-binary", {"train.bin": body, "test.bin": body}, packed)
    assert cifar.refusal(str(tmp_path)) is None
    train = cifar.open_dataset(str(tmp_path), seed=0, test_images=0).train
    assert np.array_equal(train.images, images)
    assert train.labels.tolist() == LABELS


def test_the_folder_of_the_files_itself_is_accepted(tmp_path, images):
    (tmp_path / "train").write_bytes(pickle.dumps(document(images)))
    assert len(cifar.open_dataset(str(tmp_path), seed=0, test_images=0).train) == COUNT


def test_synthetic_images_have_its_shape_and_a_note():
    source = cifar.open_dataset("", seed=0, test_images=10)
    assert source.train.images.shape == (50_000, 3, 32, 32)
    assert len(source.test) == 10
    assert source.train.labels.max() == 99
    assert "synthetic" in source.notes[0]


class Payload:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def read(tmp_path, body):
    (tmp_path / "train").write_bytes(body)
    return cifar.open_dataset(str(tmp_path), seed=0, test_images=0)


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_refused_and_never_run(tmp_path, images, protocol):
    ran = tmp_path / "ran"
    hostile = {**document(images), "extra": Payload(open, str(ran), "w")}
    with pytest.raises(BadValue, match="nothing in it was executed"):
        read(tmp_path, pickle.dumps(hostile, protocol=protocol))
    assert not ran.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",  # protocol 0
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"\x80\x02cos\nsystem\nX\x09\x00\x00\x00touch ran\x85R.",
        b"\x80\x02cbuiltins\nobject\n)\x81.",  # NEWOBJ
        b"\x80\x02}cnumpy\ndtype\nb.",  # a state for a dictionary
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93\x8c\x01O\x85R.",  # an array of objects comes of this alone: harmless
        b"\x80\x02P1\n.",  # a persistent name
        b"\x80\x02\x82\x01.",  # an extension's code
        b"\x80\x05\x97.",  # a buffer from outside
    ],
)
def test_other_ways_to_call_something_are_refused(tmp_path, monkeypatch, body):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue):
        read(tmp_path, body)
    assert not (tmp_path / "ran").exists()


def test_an_array_of_objects_is_refused(tmp_path, images):
    objects = np.array([Payload(print)], dtype=object)
    with pytest.raises(BadValue, match="nothing in it was executed"):
        read(tmp_path, pickle.dumps({**document(images), "data": objects}, protocol=2))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02T\xff\xff\xff\x7f",  # two gigabytes that aren't there
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc",  # and more
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo of nothing
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo with a huge index: a table of that size would take 16 GB
        b"\x80\x02h\x07.",  # an unknown memo index
        b"\x80\x02t.",  # a tuple without its mark
        b"\x80\x02](}e.",
        b"\x80\x02}(K\x01u.",  # a key without a value
        b"\x80\x02}(]K\x01u.",  # a list as a key
        b"\xff\xfe.",
        b"not a pickle at all",
        b"." * 5,
    ],
)
def test_a_broken_pickle_is_refused_in_one_line(tmp_path, body):
    with pytest.raises(BadValue) as error:
        read(tmp_path, body)
    assert "\n" not in str(error.value)
    assert "train" in str(error.value)


def test_every_truncation_is_refused(tmp_path, images):
    whole = pickle.dumps(document(images), protocol=2)
    for length in (*range(0, 200, 7), len(whole) // 2, len(whole) - 1):
        with pytest.raises(BadValue):
            read(tmp_path, whole[:length])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fine_labels": LABELS[:-1]}, "for 5 labels"),
        ({"fine_labels": [100, *LABELS[1:]]}, "labels up to 100"),
        ({"fine_labels": [-1, *LABELS[1:]]}, "aren't whole numbers"),
        ({"fine_labels": [1.5, *LABELS[1:]]}, "aren't whole numbers"),
        ({"fine_labels": "abc"}, "no arrays"),
        ({"data": [1, 2]}, "no arrays"),
        ({"data": np.zeros((COUNT, 3071), dtype=np.uint8)}, "3072 bytes"),
        ({"data": np.zeros((0, 3072), dtype=np.uint8), "fine_labels": []}, "no images"),
        ({"data": np.zeros((COUNT, 3072), dtype=np.float32)}, "an array of f4"),
    ],
)
def test_wrong_content_is_refused(tmp_path, images, change, words):
    with pytest.raises(BadValue, match=words):
        read(tmp_path, pickle.dumps({**document(images), **change}, protocol=4))


def test_a_truncated_binary_file_is_refused(tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes(3074 + 100))
    with pytest.raises(BadValue, match="truncated"):
        cifar.open_dataset(str(tmp_path), seed=0, test_images=0)


def test_a_truncated_archive_is_refused(tmp_path, pickled):
    put(tmp_path, "cifar-100-python", {"train": pickled, "test": pickled}, packed=True)
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(BadValue, match=r"train in .*tar.gz|test in .*tar.gz"):
        cifar.open_dataset(str(tmp_path), seed=0, test_images=1)


def test_an_archive_with_a_link_instead_of_the_file_is_refused(tmp_path):
    with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("cifar-100-python/train")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(BadValue, match="has no file cifar-100-python/train"):
        cifar.open_dataset(str(tmp_path), seed=0, test_images=0)


def test_a_folder_without_cifar_is_refused(tmp_path):
    assert "no folder" in cifar.refusal(str(tmp_path / "none"))
    assert "has no CIFAR-100" in cifar.refusal(str(tmp_path))
