"""Existing files at the output: foreign files are never touched, and no input is ever removed."""

import shutil

import numpy as np
import pytest
from blocks_children import Children, heard, say
from infer_cases import export_network, read_stored, single_thread
from torch import nn
from volumes_on_disk import zarr3

from rigdyno.engines.blockwise import BadOutput, BadSetting, Inference, Job, TooLittleMemory, WontResume
from rigdyno.engines.blockwise.output_folder import FOLDER, PLAN, remove_output, require_usable

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    zarr3(folder / "in.zarr", np.random.default_rng(0).integers(0, 255, (12, 12, 12)).astype(np.uint8), (8, 8, 8))
    with single_thread():
        export_network(folder / "net.pt2", nn.Sequential(nn.Conv3d(1, 1, 3, padding=1), nn.Sigmoid()))
    return folder


def a_job(given, output, **changes):
    fields = {"source": f"{given}/in.zarr", "output": str(output), "model": f"{given}/net.pt2", "block": (8, 8, 8)}
    return Job(**{**fields, **changes})


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_overwrite_begins_anew_with_other_settings(given, tmp_path):
    Inference(a_job(given, tmp_path / "out", dtype="float16")).run()
    with pytest.raises(WontResume, match="the output type has changed"):
        Inference(a_job(given, tmp_path / "out")).run()
    done = Inference(a_job(given, tmp_path / "out", overwrite=True, block=(6, 6, 6))).run()
    assert done.counts.done == 8
    assert read_stored(tmp_path / "out").dtype == np.uint8
    assert len(list((tmp_path / "out" / "0" / "c").rglob("*/*/*/*"))) == 8


def test_overwrite_works_where_there_is_nothing(given, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        assert Inference(a_job(given, tmp_path / name, overwrite=True)).run().counts.done == 8


def test_a_linked_folder_stays_linked(given, tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large disk")
    for overwrite in (False, True):
        Inference(a_job(given, tmp_path / "out", overwrite=overwrite)).run()
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "large disk" / "zarr.json").exists()


@pytest.mark.parametrize(
    "names",
    [["notes.txt"], ["zarr.json", "0/zarr.json"], [f"{FOLDER}/{PLAN}", "mine.npy"], [f"{FOLDER}/{PLAN}", "1/x"]],
)
def test_foreign_files_are_left_alone(names, given, tmp_path):
    out = tmp_path / "out"
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("of another program")
    before = everything(out)
    with pytest.raises(BadSetting, match="wasn't made by this program, so --overwrite leaves it alone"):
        Inference(a_job(given, out, overwrite=True)).run()
    with pytest.raises((BadOutput, WontResume)):
        Inference(a_job(given, out)).run()
    assert everything(out).items() >= before.items()


def test_files_added_to_an_output_dont_stop_a_run(given, tmp_path):
    """Coarser levels may be added, for instance; `--overwrite` doesn't remove them."""
    Inference(a_job(given, tmp_path / "out")).run()
    (tmp_path / "out" / "1").mkdir()
    assert Inference(a_job(given, tmp_path / "out")).run().counts.done == 8
    with pytest.raises(BadSetting, match="holds 1, which wasn't made by this program"):
        Inference(a_job(given, tmp_path / "out", overwrite=True)).run()


def test_files_and_urls_are_refused_as_outputs(given, tmp_path):
    (tmp_path / "file").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(BadOutput, match="is a file: take another name"):
            Inference(a_job(given, tmp_path / "file", overwrite=overwrite)).run()
    with pytest.raises(BadOutput, match="is a URL"):
        Inference(a_job(given, "s3://bucket/out")).run()
    assert (tmp_path / "file").read_text() == "mine"


def test_an_input_is_never_removed_for_an_output(given, tmp_path):
    """An output is a volume too, and may be the input of the next run."""
    first = tmp_path / "first"
    Inference(a_job(given, first)).run()
    before = everything(first)
    shutil.copy(given / "net.pt2", first / "0" / "net.pt2")
    for changes in (
        {"source": str(first)},
        {"source": f"file://{first}/0"},
        {"source": f"{given}/../{given.name}/in.zarr", "mask": f"file://{first}/0"},
        {"model": str(first / "0" / "net.pt2")},
    ):
        with pytest.raises(BadSetting, match="is inside the output"):
            require_usable(str(first), a_job(given, first, **changes).files, overwrite=True)
    (first / "0" / "net.pt2").unlink()
    with pytest.raises(BadSetting, match="is inside the output"):
        Inference(a_job(given, first, source=str(first), at={"c": 0}, overwrite=True)).run()
    assert everything(first) == before


def test_a_refused_overwrite_keeps_the_old_output(given, tmp_path):
    """The old output is removed only after the new one has been planned."""
    Inference(a_job(given, tmp_path / "out")).run()
    before = everything(tmp_path / "out")
    with pytest.raises(TooLittleMemory):
        Inference(a_job(given, tmp_path / "out", overwrite=True, memory=1000)).run()
    with pytest.raises(BadSetting):
        Inference(a_job(given, tmp_path / "out", overwrite=True, halo="much")).run()
    assert everything(tmp_path / "out") == before


def test_an_output_removed_in_part_is_not_resumed(given, tmp_path, monkeypatch):
    """The plan is removed first, so that the marks of missing blocks aren't trusted after a kill."""
    Inference(a_job(given, tmp_path / "out")).run()

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_output(tmp_path / "out")
    monkeypatch.undo()
    assert not (tmp_path / "out" / FOLDER / PLAN).exists()
    with pytest.raises(BadOutput):
        Inference(a_job(given, tmp_path / "out")).run()
    assert Inference(a_job(given, tmp_path / "out", overwrite=True)).run().counts.done == 8


HOLDS = """
import fcntl
with open(sys.argv[1], "rb+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 3)
    tell("held")
    listen()
"""


@pytest.mark.parametrize("name", ["blocks", "lock"])
def test_overwrite_is_refused_while_another_process_runs(name, given, tmp_path):
    Inference(a_job(given, tmp_path / "out")).run()
    before = everything(tmp_path / "out")
    with Children() as children:
        child = children.start(HOLDS, tmp_path / "out" / FOLDER / name)
        assert heard(child) == "held"
        with pytest.raises(BadSetting, match="another process is at work on"):
            Inference(a_job(given, tmp_path / "out", overwrite=True)).run()
        assert everything(tmp_path / "out") == before
        say(child)
        child.wait()
    assert Inference(a_job(given, tmp_path / "out", overwrite=True)).run().counts.done == 8


def test_overwrite_is_refused_for_several_ranks(given, tmp_path):
    with pytest.raises(BadSetting, match="--overwrite is for one process"):
        a_job(given, tmp_path / "out", overwrite=True, world=2)


@pytest.mark.parametrize("changes", [{"memory": 1000}, {"halo": "much"}, {"normalise": "0,0"}, {"backend": "none"}])
def test_a_run_that_is_refused_leaves_nothing(changes, given, tmp_path):
    with pytest.raises(ValueError, match=r"."):
        Inference(a_job(given, tmp_path / "new" / "deep" / "out", **changes)).run()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match=r"."):
        Inference(a_job(given, tmp_path / "there", **changes)).run()
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_plan_alone_writes_nothing(given, tmp_path):
    plan = Inference(a_job(given, tmp_path / "out")).plan()
    assert list(tmp_path.iterdir()) == []
    done = Inference(a_job(given, tmp_path / "out")).run()
    assert done.plan.block == plan.block
    before = everything(tmp_path / "out")
    again = Inference(a_job(given, tmp_path / "out"))
    assert again.is_begun
    assert again.plan() == done.plan
    assert everything(tmp_path / "out") == before


def test_contradictions_of_the_stored_plan_are_refused(given, tmp_path):
    done = Inference(a_job(given, tmp_path / "out", block=None)).run()
    assert done.plan.backend == "torch"
    with pytest.raises(WontResume, match="was begun with the backend torch, not compile"):
        Inference(a_job(given, tmp_path / "out", block=None, backend="compile")).run()
    with pytest.raises(WontResume, match="--memory allows"):
        Inference(a_job(given, tmp_path / "out", block=None, memory=1000)).run()
    for same in ({"backend": "torch"}, {"memory": done.plan.memory_bytes}, {"threads": 1}):
        assert Inference(a_job(given, tmp_path / "out", block=None, **same)).run().summary.done == 0
