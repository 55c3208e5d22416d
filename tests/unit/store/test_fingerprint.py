"""Hashes of a run's files, held against what sha256sum itself prints."""

import os
import subprocess

import pytest

from rigdyno.store.fingerprint import raw_files

COMMAND = "find head.json cells -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "head.json").write_text("{}")
    for cell in ("01-a", "01-a b", "02\\x", "03\ny", "04-ü"):
        inside = tmp_path / "cells" / cell / "rank0"
        inside.mkdir(parents=True)
        (inside / "steps.rows").write_bytes(cell.encode() * 1000)
    (tmp_path / "lock").touch()
    (tmp_path / "report.html").write_text("made later")
    return tmp_path


def printed(folder, command):
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_hash_of_the_list_is_what_the_command_gives(folder):
    assert raw_files(folder, 100).digest == printed(folder, f"({COMMAND}) | sha256sum").split()[0]


def test_every_file_has_its_hash_and_size(folder):
    found = raw_files(folder, 100)
    assert [file.name for file in found.listed] == [
        "cells/01-a b/rank0/steps.rows", "cells/01-a/rank0/steps.rows", "cells/02\\x/rank0/steps.rows",
        "cells/03\ny/rank0/steps.rows", "cells/04-ü/rank0/steps.rows", "head.json",
    ]  # fmt: skip
    lines = printed(folder, COMMAND).splitlines()
    assert [file.sha256 for file in found.listed] == [line.removeprefix("\\").split()[0] for line in lines]
    assert found.count == 6
    assert found.size_bytes == sum(file.size_bytes for file in found.listed) == 2 + 1000 * (4 + 6 + 4 + 4 + 5)


def test_a_long_list_is_cut_but_the_hash_covers_all(folder):
    cut, whole = raw_files(folder, 2), raw_files(folder, 100)
    assert len(cut.listed) == 2
    assert (cut.count, cut.digest, cut.size_bytes) == (whole.count, whole.digest, whole.size_bytes)


def test_one_changed_byte_changes_the_hash(folder):
    before = raw_files(folder, 0).digest
    path = folder / "cells/01-a/rank0/steps.rows"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert raw_files(folder, 0).digest != before


def test_links_and_pipes_are_no_part_of_a_run(folder, tmp_path_factory):
    before = raw_files(folder, 100)
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("secret")
    (folder / "cells/01-a/link").symlink_to(secret)
    (folder / "cells/elsewhere").symlink_to(secret.parent)
    os.mkfifo(folder / "cells/01-a/pipe")
    assert raw_files(folder, 100) == before


def test_a_name_that_is_no_text_is_shown_all_the_same(folder):
    (folder / "cells" / os.fsdecode(b"05-\xff")).write_text("x")
    found = raw_files(folder, 100)
    assert "cells/05-�" in [file.name for file in found.listed]
    assert found.digest == printed(folder, f"({COMMAND}) | sha256sum").split()[0]
