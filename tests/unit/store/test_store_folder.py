"""Run folders: made, locked, written whole, read in spite of damage."""

import errno
import multiprocessing
import os
import shutil

import msgspec
import pytest

from rigdyno import api
from rigdyno.base.errors import DamagedRun, NewerStore, StoreError, UsageError
from rigdyno.base.files import read_json, write_json
from rigdyno.schema.record import DeviceMemory, RunRecord
from rigdyno.schema.spec import Cell, RunSpec
from rigdyno.store.folder import HEAD, RECORD, RunFolder, run_folders
from support import NOW, a_head, a_record, a_stored_run, rows_path

OTHER = RunSpec(workload="tensor_add")
CELL = Cell(name="01-test", spec=RunSpec(workload="tensor_add", options={"variant": "as_published"}))


def test_two_runs_in_one_second_get_two_folders(tmp_path):
    folders = [RunFolder.create(tmp_path / "deep" / "runs", "device", NOW) for _ in range(3)]
    stem = "device.20260102-030405"
    assert [folder.name for folder in folders] == [stem, f"{stem}-2", f"{stem}-3"]
    assert all(":" not in folder.name and (folder.path / "cells").is_dir() for folder in folders)


def test_a_path_through_a_file_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a part of that path is a file"):
        RunFolder.create(tmp_path / "file" / "runs", "device", NOW)
    with pytest.raises(StoreError, match="a file of that name is in the way"):
        RunFolder.create(tmp_path / "file", "device", NOW)


def test_other_folders_are_refused_as_run_folders(tmp_path):
    with pytest.raises(UsageError, match="no run folder at"):
        RunFolder.existing(tmp_path / "none")
    with pytest.raises(UsageError, match=r"not a run folder: it has no head\.json"):
        RunFolder.existing(tmp_path)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_written_record_is_read_back(tmp_path):
    write_json(tmp_path / "a.json", CELL)
    assert read_json(tmp_path / "a.json", Cell) == CELL
    assert left_in(tmp_path) == ["a.json"]


def test_a_record_from_before_devices_told_of_their_memory_is_read(tmp_path):
    memory = DeviceMemory(peak_bytes=6, limit_bytes=12)
    written = msgspec.to_builtins(a_record(device_memory=memory))
    assert msgspec.convert(written, RunRecord).device_memory == memory
    del written["device_memory"]
    assert msgspec.convert(written, RunRecord) == a_record()


def test_a_failing_encode_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert read_json(tmp_path / "a.json", dict) == {"old": 1}
    assert left_in(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.EDQUOT, "quota"), (errno.EIO, "error")],
)
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, number, words):
    write_json(tmp_path / "a.json", {"old": 1})

    def fail(_descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=rf"can't write .*a\.json: .*{words}"):
        write_json(tmp_path / "a.json", {"new": 2})
    assert read_json(tmp_path / "a.json", dict) == {"old": 1}
    assert left_in(tmp_path) == ["a.json"]


def test_a_locked_run_keeps_others_off(tmp_path):
    folder = RunFolder.create(tmp_path, "device", NOW)
    assert not folder.is_running()
    with folder.locked():
        assert folder.is_running()
        with pytest.raises(UsageError, match="is being run by another rigdyno"), folder.locked():
            pass
        assert folder.is_running()
    assert not folder.is_running()
    with folder.locked():
        pass


def _hold(path, ready, done):
    with RunFolder(path).locked():
        ready.set()
        done.wait(60)


def test_a_lock_holds_against_another_process(tmp_path):
    folder = RunFolder.create(tmp_path, "device", NOW)
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=_hold, args=(folder.path, ready, done))
    holder.start()
    try:
        assert ready.wait(60)
        assert folder.is_running()
    finally:
        done.set()
        holder.join(60)
    assert not folder.is_running()


def test_a_fresh_cell_folder_is_empty(tmp_path):
    folder = RunFolder.create(tmp_path, "device", NOW)
    (folder.fresh_cell_folder(CELL) / "left.over").write_text("x")
    assert left_in(folder.fresh_cell_folder(CELL)) == []


@pytest.mark.parametrize("name", ["..", ".", "", "../../elsewhere", "{tmp_path}/elsewhere", "a/b", "a\0b"])
def test_a_plan_that_was_tampered_with_empties_no_other_folder(tmp_path, name):
    """Every name points below tmp_path: if the guard were missing, nothing else could be lost."""
    name = name.replace("{tmp_path}", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("x")
    folder = RunFolder.create(tmp_path, "device", NOW)
    with pytest.raises(DamagedRun, match="names a cell"):
        folder.fresh_cell_folder(Cell(name=name, spec=CELL.spec))
    assert (tmp_path / "elsewhere" / "precious").exists()
    assert (folder.path / "cells").is_dir()


def test_steps_beside_a_record_that_can_not_be_read_are_put_aside_not_deleted(tmp_path):
    folder = RunFolder(a_stored_run(tmp_path))
    for number in (1, 2):
        (folder.cell_folder(CELL) / RECORD).write_text("{")
        rows_path(folder.cell_folder(CELL)).write_text(f"precious {number}")
        assert left_in(folder.fresh_cell_folder(CELL)) == []
    kept = sorted((folder.path / "damaged").glob("*/rank0/steps.rows"))
    assert [path.read_text() for path in kept] == ["precious 1", "precious 2"]


def test_a_cell_is_finished_when_its_record_can_be_read(tmp_path):
    folder = RunFolder(a_stored_run(tmp_path))
    assert folder.is_finished(CELL)
    record = folder.cell_folder(CELL) / RECORD
    record.write_bytes(record.read_bytes()[:-10])
    assert not folder.is_finished(CELL)
    record.unlink()
    assert not folder.is_finished(CELL)


def test_a_newer_record_is_never_taken_for_unfinished(tmp_path):
    """Or resuming would overwrite it."""
    folder = RunFolder(a_stored_run(tmp_path))
    made_newer(folder.cell_folder(CELL) / RECORD)
    with pytest.raises(NewerStore):
        folder.is_finished(CELL)


def made_newer(path):
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "schema_version": 99}))


def a_run_of_three(root):
    folder = RunFolder(a_stored_run(root))
    for name in ("02-second", "03-third"):
        cell = Cell(name=name, spec=OTHER)
        shutil.copytree(folder.cell_folder(CELL), folder.cell_folder(cell))
        folder.write_record(a_record(OTHER, cell=name, run=folder.name), cell)
    folder.write_head(a_head([CELL, *(Cell(name=n, spec=OTHER) for n in ("02-second", "03-third"))]))
    return folder


@pytest.mark.parametrize("spoil", ["garbage", "newer", "folder"])
def test_a_damaged_record_is_named_and_the_others_served(tmp_path, spoil):
    folder = a_run_of_three(tmp_path)
    record = folder.path / "cells" / "02-second" / RECORD
    if spoil == "garbage":
        record.write_bytes(b"\xff\xfe")
    elif spoil == "newer":
        made_newer(record)
    else:
        record.unlink()
        record.mkdir()
    warnings = []
    assert [cell.record.cell for cell in folder.cells(warnings)] == ["01-test", "03-third"]
    assert len(warnings) == 1
    assert str(record) in warnings[0]
    view = api.load(folder.path).view()
    assert any(str(record) in warning for warning in view.warnings)
    assert len(view.tables[0].rows) == 2


def test_damaged_samples_are_named_and_the_others_served(tmp_path):
    folder = a_run_of_three(tmp_path)
    steps = folder.path / "cells" / "03-third" / "rank0" / "steps.rows"
    steps.write_bytes(b"{")
    run = api.load(folder.path)
    assert sum(len(m.records) for m in run.measurements) == 2
    assert run.warnings == [f"skipped: {steps} ends inside its header"]


def test_a_cell_without_a_record_is_said_to_be_unfinished(tmp_path):
    folder = a_run_of_three(tmp_path)
    shutil.rmtree(folder.path / "cells" / "02-second")
    (warning,) = api.load(folder.path).view().warnings
    assert warning == f"1 of 3 cells are not finished; go on with: rigdyno run --resume {folder.path}"
    with folder.locked():
        assert api.load(folder.path).view().warnings == ("1 of 3 cells are not finished; it is still running",)


def test_more_cells_than_planned_are_not_a_negative_number(tmp_path):
    folder = a_run_of_three(tmp_path)
    folder.write_head(a_head([CELL]))
    assert api.load(folder.path).view().warnings == ()


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", DamagedRun, "not readable JSON"),
        (b"\xff", DamagedRun, "not readable JSON"),
        (b"[" * 100_000, DamagedRun, "not readable JSON"),
        (b"[]", DamagedRun, "no schema_version"),
        (b'{"schema_version": true}', DamagedRun, "no schema_version"),
        (b'{"schema_version": 0}', DamagedRun, "no schema_version"),
        (b'{"schema_version": 1}', DamagedRun, "has schema 1, which no release has written"),
        (b'{"schema_version": 2}', DamagedRun, "doesn't hold what it should"),
        (b'{"schema_version": 99}', NewerStore, "schema 99, this one reads 2.*upgrade"),
    ],
)
def test_an_unreadable_head_is_reported(tmp_path, content, error, says):
    folder = RunFolder(a_stored_run(tmp_path))
    (folder.path / HEAD).write_bytes(content)
    with pytest.raises(error, match=says) as raised:
        folder.head()
    assert str(folder.path / HEAD) in str(raised.value)


def test_folders_come_newest_last_and_strangers_are_left_out(tmp_path):
    assert run_folders(tmp_path / "none") == []
    first, second = a_stored_run(tmp_path), a_stored_run(tmp_path)
    (tmp_path / "stranger").mkdir()
    os.utime(first, ns=(2, 2))
    os.utime(second, ns=(1, 1))
    assert [folder.path for folder in run_folders(tmp_path)] == [second, first]
