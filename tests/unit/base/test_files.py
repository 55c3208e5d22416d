"""Atomic writes and whole-file locks, with a disk that fails and files that vanish."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

from rigdyno.base.files import atomic_write, lock_file

HOLDS_A_BYTE = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 3)
    print("held", flush=True)
    sys.stdin.read()
"""


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


class TestAtomicWrite:
    def test_the_old_content_stays_until_the_block_ends(self, path):
        with atomic_write(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert names_in(path.parent) == ["file"]

    def test_an_error_in_the_block_leaves_the_old_file_alone(self, path):
        with pytest.raises(TypeError), atomic_write(path) as file:
            file.write("no bytes")
        assert path.read_bytes() == b"old"
        assert names_in(path.parent) == ["file"]

    def test_two_writers_of_one_process_use_two_temporary_files(self, path):
        with atomic_write(path) as first, atomic_write(path) as second:
            first.write(b"first")
            second.write(b"second")
        assert path.read_bytes() == b"first"
        assert names_in(path.parent) == ["file"]

    def test_a_named_temporary_file_replaces_what_a_killed_writer_left(self, path):
        temporary = path.with_name(".file.tmp")
        temporary.write_bytes(b"left by a killed writer")
        with atomic_write(path, temporary=temporary) as file:
            file.write(b"new")
            assert temporary.exists()
        assert path.read_bytes() == b"new"
        assert names_in(path.parent) == ["file"]

    @pytest.mark.parametrize("durable", [False, True])
    def test_the_folder_is_synced_on_demand(self, path, monkeypatch, durable):
        synced, fsync = [], os.fsync

        def recorded(descriptor):
            synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", recorded)
        with atomic_write(path, durable=durable) as file:
            file.write(b"new")
        assert synced == (["file", "folder"] if durable else ["file"])

    def test_a_full_disk_is_an_os_error(self, path, monkeypatch):
        def full(_descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"), atomic_write(path) as file:
            file.write(b"new")
        assert path.read_bytes() == b"old"
        assert names_in(path.parent) == ["file"]


class TestLockFile:
    def test_flock_excludes_other_openings_in_this_process(self, path):
        with lock_file(path, "flock") as first, lock_file(path, "flock") as second:
            assert (first, second) == (True, False)
        with lock_file(path, "flock") as again:
            assert again

    def test_shared_locks_exclude_only_exclusive_ones(self, path):
        with lock_file(path, "flock", shared=True) as one, lock_file(path, "flock", shared=True) as two:
            assert (one, two) == (True, True)
            with lock_file(path, "flock") as alone:
                assert not alone

    def test_posix_excludes_a_process_that_holds_one_byte(self, path):
        command = [sys.executable, "-c", HOLDS_A_BYTE, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"held\n"
            with lock_file(path, "posix") as is_free:
                assert not is_free
            holder.stdin.close()
        with lock_file(path, "posix") as is_free:
            assert is_free

    @pytest.mark.parametrize("kind", ["flock", "posix"])
    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_file_that_is_removed_before_it_is_locked_counts_as_taken(self, path, monkeypatch, kind, replaced):
        name = "flock" if kind == "flock" else "lockf"
        lock = getattr(fcntl, name)

        def remove_first(descriptor, operation):
            path.unlink()
            if replaced:
                path.write_bytes(b"another one")
            lock(descriptor, operation)

        monkeypatch.setattr(fcntl, name, remove_first)
        with lock_file(path, kind) as is_free:
            assert not is_free

    def test_a_file_system_without_locks_is_an_os_error(self, path, monkeypatch):
        def no_locks(*_arguments):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(OSError, match="No locks available"), lock_file(path, "flock"):
            pass

    def test_a_missing_file_is_not_created(self, tmp_path):
        with pytest.raises(FileNotFoundError), lock_file(tmp_path / "none", "posix"):
            pass
        assert names_in(tmp_path) == []
