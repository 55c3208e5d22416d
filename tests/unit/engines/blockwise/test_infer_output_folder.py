"""What lies where the output shall be: nothing that isn't ours is ever touched, and no input is ever removed."""

import shutil

import numpy as np
import pytest
from blocks_children import Children, heard, say
from infer_cases import exported, single_thread, stored
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
        exported(folder / "net.pt2", nn.Sequential(nn.Conv3d(1, 1, 3, padding=1), nn.Sigmoid()))
    return folder


def a_job(given, output, **changes):
    fields = {"source": f"{given}/in.zarr", "output": str(output), "model": f"{given}/net.pt2", "block": (8, 8, 8)}
    return Job(**{**fields, **changes})


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_begun_anew_with_other_settings(given, tmp_path):
    Inference(a_job(given, tmp_path / "out", dtype="float16")).run()
    with pytest.raises(WontResume, match="the output type was another one"):
        Inference(a_job(given, tmp_path / "out")).run()
    done = Inference(a_job(given, tmp_path / "out", overwrite=True, block=(6, 6, 6))).run()
    assert done.counts.done == 8
    assert stored(tmp_path / "out").dtype == np.uint8
    assert len(list((tmp_path / "out" / "0" / "c").rglob("*/*/*/*"))) == 8


def test_overwrite_where_there_is_nothing(given, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        assert Inference(a_job(given, tmp_path / name, overwrite=True)).run().counts.done == 8


def test_through_a_link_the_link_stays(given, tmp_path):
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
def test_what_isnt_ours_is_left_alone(names, given, tmp_path):
    out = tmp_path / "out"
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("of somebody else")
    before = everything(out)
    with pytest.raises(BadSetting, match="wasn't made by this program, so --overwrite leaves it alone"):
        Inference(a_job(given, out, overwrite=True)).run()
    with pytest.raises((BadOutput, WontResume)):
        Inference(a_job(given, out)).run()
    assert everything(out).items() >= before.items()


def test_what_was_added_to_a_result_doesnt_stop_it(given, tmp_path):
    """Coarser levels, for instance. But they aren't ours to remove."""
    Inference(a_job(given, tmp_path / "out")).run()
    (tmp_path / "out" / "1").mkdir()
    assert Inference(a_job(given, tmp_path / "out")).run().counts.done == 8
    with pytest.raises(BadSetting, match="holds 1, which wasn't made by this program"):
        Inference(a_job(given, tmp_path / "out", overwrite=True)).run()


def test_a_file_and_a_url_are_no_folders(given, tmp_path):
    (tmp_path / "file").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(BadOutput, match="is a file: take another name"):
            Inference(a_job(given, tmp_path / "file", overwrite=overwrite)).run()
    with pytest.raises(BadOutput, match="is a URL"):
        Inference(a_job(given, "s3://bucket/out")).run()
    assert (tmp_path / "file").read_text() == "mine"


def test_an_input_is_never_removed_for_an_output(given, tmp_path):
    """A result is a volume too, and may well be read for the next step."""
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
        with pytest.raises(BadSetting, match="lies in the output"):
            require_usable(str(first), a_job(given, first, **changes).files, overwrite=True)
    (first / "0" / "net.pt2").unlink()
    with pytest.raises(BadSetting, match="lies in the output"):
        Inference(a_job(given, first, source=str(first), at={"c": 0}, overwrite=True)).run()
    assert everything(first) == before


def test_what_is_refused_after_all_costs_nothing(given, tmp_path):
    """The old result goes when the new one is planned, not before."""
    Inference(a_job(given, tmp_path / "out")).run()
    before = everything(tmp_path / "out")
    with pytest.raises(TooLittleMemory):
        Inference(a_job(given, tmp_path / "out", overwrite=True, memory=1000)).run()
    with pytest.raises(BadSetting):
        Inference(a_job(given, tmp_path / "out", overwrite=True, halo="much")).run()
    assert everything(tmp_path / "out") == before


def test_removed_half_way_it_isnt_taken_for_done(given, tmp_path, monkeypatch):
    """Killed while it removes: without its plan nobody believes the marks of what is gone."""
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
def test_while_another_process_is_at_work(name, given, tmp_path):
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


def test_several_ranks_would_remove_each_others_work(given, tmp_path):
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


def test_what_was_settled_isnt_quietly_something_else(given, tmp_path):
    done = Inference(a_job(given, tmp_path / "out", block=None)).run()
    assert done.plan.backend == "torch"
    with pytest.raises(WontResume, match="is computed by torch, not by compile"):
        Inference(a_job(given, tmp_path / "out", block=None, backend="compile")).run()
    with pytest.raises(WontResume, match="--memory allows"):
        Inference(a_job(given, tmp_path / "out", block=None, memory=1000)).run()
    for same in ({"backend": "torch"}, {"memory": done.plan.memory_bytes}, {"threads": 1}):
        assert Inference(a_job(given, tmp_path / "out", block=None, **same)).run().summary.done == 0
