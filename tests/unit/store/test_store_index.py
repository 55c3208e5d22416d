"""The index: made from the folders, and made anew whenever it isn't what it should be."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rigdyno.schema.spec import RunSpec
from rigdyno.store import index
from rigdyno.store.index import FILE, find
from support import a_stored_run


def runs_of(root, **wanted):
    entries, warnings = find(root, **wanted)
    assert warnings == []
    return sorted(entry.run for entry in entries)


@pytest.fixture
def store(tmp_path):
    a_stored_run(tmp_path, suite="device", label="mine")
    a_stored_run(tmp_path, spec=RunSpec(workload="mnist_cnn"))
    return tmp_path


BOTH = ["test.20260102-030405", "test.20260102-030405-2"]


def test_entries_say_what_a_leaderboard_needs(store):
    entries, _ = find(store, suite="device")
    assert len(entries) == 1
    entry = entries[0]
    assert (entry.workload, entry.label, entry.outcome) == ("tensor_add", "mine", "completed")
    assert entry.path == store / BOTH[0] / "cells" / "01-test"
    assert runs_of(store, workload="mnist_cnn") == BOTH[1:]
    assert runs_of(store) == BOTH


def test_an_index_is_kept_and_records_are_not_read_again(store, monkeypatch):
    assert runs_of(store) == BOTH
    monkeypatch.setattr(index, "read_record", lambda _path: pytest.fail("a record was opened again"))
    assert runs_of(store) == BOTH


def test_a_missing_index_is_rebuilt(store):
    runs_of(store)
    (store / FILE).unlink()
    assert runs_of(store) == BOTH
    assert (store / FILE).exists()


def test_an_index_of_another_version_is_rebuilt(store):
    with sqlite3.connect(store / FILE) as old:
        old.execute("create table cells (something text)")
        old.execute("pragma user_version = 12345")
    old.close()
    assert runs_of(store) == BOTH


@pytest.mark.parametrize("spoil", ["garbage", "truncated", "empty", "other_table", "middle"])
def test_a_damaged_index_is_rebuilt(store, spoil):
    runs_of(store)
    file = store / FILE
    content = file.read_bytes()
    if spoil == "other_table":
        with sqlite3.connect(file) as database:
            database.execute("drop table cells")
        database.close()
    else:
        file.write_bytes(
            {
                "garbage": b"\xff" * 5000,
                "truncated": content[: len(content) // 2],
                "empty": b"",
                "middle": content[:100] + b"\xff" * (len(content) - 100),
            }[spoil]
        )
    assert runs_of(store) == BOTH
    with sqlite3.connect(file) as database:
        assert database.execute("select count(*) from cells").fetchone() == (2,)
    database.close()


def test_a_folder_that_vanished_is_forgotten(store):
    runs_of(store)
    shutil.rmtree(store / BOTH[0])
    assert runs_of(store) == BOTH[1:]


def test_a_record_that_changed_is_read_again(store):
    runs_of(store)
    record = store / BOTH[1] / "cells" / "01-test" / "record.json"
    record.write_bytes(record.read_bytes().replace(b'"mnist_cnn"', b'"matmul_peak"'))
    assert runs_of(store, workload="mnist_cnn") == []
    assert runs_of(store, workload="matmul_peak") == BOTH[1:]


def test_a_damaged_record_is_a_warning_until_it_is_mended(store):
    record = store / BOTH[0] / "cells" / "01-test" / "record.json"
    sound = record.read_bytes()
    record.write_bytes(b"{")
    for _ in range(2):
        entries, warnings = find(store)
        assert [entry.run for entry in entries] == BOTH[1:]
        assert len(warnings) == 1
        assert str(record) in warnings[0]
    record.write_bytes(sound)
    assert runs_of(store) == BOTH


def test_a_folder_name_that_is_not_utf8_is_indexed(store):
    strange = os.fsdecode(os.fsencode(store) + b"/\xff.run")
    try:
        shutil.copytree(store / BOTH[0], strange)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    assert runs_of(store) == [BOTH[0], *BOTH]
    (Path(strange) / "cells" / "01-test" / "record.json").write_bytes(b"")
    _, warnings = find(store)
    assert "\\udcff.run" in warnings[0]


def test_a_store_that_can_not_be_written_is_still_read(store, monkeypatch):
    real = sqlite3.connect

    def only_memory(path, **arguments):
        if path != ":memory:":
            raise sqlite3.OperationalError("unable to open database file")
        return real(path, **arguments)

    monkeypatch.setattr(sqlite3, "connect", only_memory)
    assert runs_of(store) == BOTH
    assert not (store / FILE).exists()


def test_an_index_that_can_only_be_read_is_not_needed(store, monkeypatch):
    """It opens, and complains only when it is to be brought up to date."""
    runs_of(store)
    a_stored_run(store)
    real = sqlite3.connect

    def read_only(path, **arguments):
        return real(path, **arguments) if path == ":memory:" else real(f"file:{path}?mode=ro", uri=True, **arguments)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert len(runs_of(store)) == 3


def test_a_damaged_index_that_can_not_be_removed_is_not_needed(store, monkeypatch):
    (store / FILE).mkdir()
    assert runs_of(store) == BOTH
    (store / FILE).rmdir()
    (store / FILE).write_bytes(b"\xff" * 5000)
    monkeypatch.setattr(index, "_remove_index", lambda _root: False)
    assert runs_of(store) == BOTH


def test_a_missing_root_has_no_entries(tmp_path):
    assert find(tmp_path / "none") == ([], [])


def test_a_record_deleted_while_looking_is_no_error(store, monkeypatch):
    real = type(store).glob

    def with_a_ghost(path, pattern):
        yield from real(path, pattern)
        yield path / "ghost" / "cells" / "01" / "record.json"

    monkeypatch.setattr(type(store), "glob", with_a_ghost)
    assert runs_of(store) == BOTH


def test_a_late_process_does_not_empty_the_table_of_another(store):
    """Both have seen that there is none yet."""
    a_stored_run(store)
    late = sqlite3.connect(store / index.FILE, timeout=5, isolation_level=None)
    assert index._read_version(late) != index.VERSION
    found = len(index.find(store)[0])
    index._create_table(late)
    assert late.execute("select count(*) from cells").fetchone() == (found,)
    late.close()


def test_several_processes_update_the_index_at_once(store):
    for _ in range(6):
        a_stored_run(store)
    program = (
        "import sys; from pathlib import Path; from rigdyno.store.index import find\n"
        "sys.stdin.readline()\n"
        "for _ in range(5):\n"
        "    entries, warnings = find(Path(sys.argv[1]))\n"
        "    print(len(entries), len(warnings))\n"
    )
    many = [
        subprocess.Popen([sys.executable, "-c", program, str(store)], stdin=-1, stdout=-1, stderr=-1, text=True)
        for _ in range(4)
    ]
    for process in many:  # all are loaded by then, more or less, and start together
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in many:
        out, err = process.communicate(timeout=60)
        assert (out.split("\n")[:5], err) == (["8 0"] * 5, "")
    assert len(runs_of(store)) == 8
