"""Reads from /proc and /sys, on files written in the kernel's forms."""

import math

import pytest

from rigdyno.base.linux import (
    OpenFile,
    group_folders,
    has_hypervisor_flag,
    parse_core_list,
    parse_number,
    parse_selected_word,
    process_tree,
    read_count,
    read_field,
    read_field_bytes,
    read_int,
    read_once,
    read_text,
)


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_a_missing_file_is_empty_text_and_no_number(tmp_path):
    missing = tmp_path / "none"
    assert (read_text(missing), read_once(str(missing))) == ("", b"")
    assert (read_int(missing), read_count(missing, "a"), read_field_bytes(missing, "a")) == (None, None, None)


def test_text_is_read_without_blanks_and_null_bytes(write):
    assert read_text(write("model", "NVIDIA Jetson Nano\0\n")) == "NVIDIA Jetson Nano"


def test_a_word_is_not_a_number(write):
    assert read_int(write("memory.max", "max\n")) is None
    assert read_int(write("memory.max", "4096\n")) == 4096


def test_a_field_is_found_by_its_whole_first_word(write):
    path = write("memory.oom_control", "oom_kill_disable 0\n\nunder_oom 0\noom_kill 7\nempty\n")
    assert read_count(path, "oom_kill") == 7
    assert (read_field(path, "empty"), read_field(path, "oom")) == ("", "")
    assert (read_count(path, "empty"), read_count(path, "oom")) == (None, None)


def test_sizes_of_proc_are_kibibytes(write):
    path = write("status", "Name:\tpython\nVmHWM:\t    2048 kB\nCpus_allowed_list:\t0-3,8\n")
    assert read_field_bytes(path, "VmHWM:") == 2048 * 1024
    assert read_field(path, "Cpus_allowed_list:") == "0-3,8"


def test_what_is_not_a_number_is_nan():
    assert parse_number(b"12\n") == 12
    assert all(math.isnan(parse_number(text)) for text in (None, b"", b"<unknown>"))


def test_core_lists_and_selected_words_are_parsed():
    assert parse_core_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_core_list("") == set()
    assert parse_selected_word("always [madvise] never") == "madvise"
    assert parse_selected_word("") is None


@pytest.mark.parametrize(("flags", "expected"), [("fpu hypervisor sse2", True), ("fpu sse2", False)])
def test_the_hypervisor_flag_is_read_from_the_flags_alone(write, tmp_path, flags, expected):
    write("proc/cpuinfo", f"model name\t: hypervisor\nflags\t\t: {flags}\nbugs\t\t: hypervisor\n")
    assert has_hypervisor_flag(tmp_path) is expected


def test_an_open_file_is_read_from_its_start_until_it_is_closed(write):
    path = write("temp", "41000\n")
    file = OpenFile(path)
    path.write_text("42000\n")
    assert (file.read(), file.read()) == (b"42000\n", b"42000\n")
    file.close()
    assert (file.read(), file.is_open) == (None, False)


def test_a_process_tree_holds_all_descendants_once(write, tmp_path):
    write("7/task/7/children", "8 9 ")
    write("7/task/70/children", "9 ")
    write("9/task/9/children", "10 ")
    assert sorted(process_tree([7, 8], str(tmp_path))) == [7, 8, 9, 10]


class TestGroupFolders:
    def relative(self, tmp_path, *arguments):
        return [str(folder.relative_to(tmp_path / "sys/fs/cgroup")) for folder in group_folders(*arguments)]

    def test_groups_come_from_the_innermost_to_the_mount(self, write, tmp_path):
        write("proc/self/cgroup", "4:cpu,cpuacct:/docker/a\n0::/user/mine\n")
        assert self.relative(tmp_path, "", tmp_path)[:3] == ["user/mine", "user", "."]
        assert self.relative(tmp_path, "cpu", tmp_path)[:3] == ["cpu/docker/a", "cpu/docker", "cpu"]

    @pytest.mark.parametrize("membership", ["", "0::/../../host\n"])
    def test_a_group_out_of_view_is_the_mount(self, tmp_path, membership):
        assert self.relative(tmp_path, "memory", tmp_path, membership) == ["memory"]
        assert self.relative(tmp_path, "", tmp_path, membership) == [".", "unified"]
