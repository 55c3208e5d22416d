"""Compare the hashes of a run's files with those that sha256sum prints."""

import os
import subprocess

import pytest

from rigdyno.report.dossier import hash_files

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


def run_shell(folder, command):
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_hash_of_the_list_matches_the_documented_command(folder):
    assert hash_files(folder, 100).digest == run_shell(folder, f"({COMMAND}) | sha256sum").split()[0]


def test_every_file_has_its_hash_and_size(folder):
    found = hash_files(folder, 100)
    assert [file.name for file in found.listed] == [
        "cells/01-a b/rank0/steps.rows", "cells/01-a/rank0/steps.rows", "cells/02\\x/rank0/steps.rows",
        "cells/03\ny/rank0/steps.rows", "cells/04-ü/rank0/steps.rows", "head.json",
    ]  # fmt: skip
    lines = run_shell(folder, COMMAND).splitlines()
    assert [file.sha256 for file in found.listed] == [line.removeprefix("\\").split()[0] for line in lines]
    assert found.count == 6
    assert found.size_bytes == sum(file.size_bytes for file in found.listed) == 2 + 1000 * (4 + 6 + 4 + 4 + 5)


def test_a_long_list_is_cut_but_the_hash_covers_all(folder):
    cut, whole = hash_files(folder, 2), hash_files(folder, 100)
    assert len(cut.listed) == 2
    assert (cut.count, cut.digest, cut.size_bytes) == (whole.count, whole.digest, whole.size_bytes)


def test_one_changed_byte_changes_the_hash(folder):
    before = hash_files(folder, 0).digest
    path = folder / "cells/01-a/rank0/steps.rows"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert hash_files(folder, 0).digest != before


def test_links_and_pipes_are_skipped(folder, tmp_path_factory):
    before = hash_files(folder, 100)
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("secret")
    (folder / "cells/01-a/link").symlink_to(secret)
    (folder / "cells/elsewhere").symlink_to(secret.parent)
    os.mkfifo(folder / "cells/01-a/pipe")
    assert hash_files(folder, 100) == before


def test_a_name_that_is_not_utf8_is_listed(folder):
    (folder / "cells" / os.fsdecode(b"05-\xff")).write_text("x")
    found = hash_files(folder, 100)
    assert "cells/05-�" in [file.name for file in found.listed]
    assert found.digest == run_shell(folder, f"({COMMAND}) | sha256sum").split()[0]
