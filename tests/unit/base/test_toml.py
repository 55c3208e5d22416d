"""TOML errors name the file, and the line where there is one."""

import pytest

from rigdyno.base.errors import BadValue
from rigdyno.base.toml import find_line, read_toml


def written(tmp_path, content):
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    return path


def test_a_toml_file_is_read(tmp_path):
    assert read_toml(written(tmp_path, 'a = 1\n[b]\nc = "é"\n'.encode())) == {"a": 1, "b": {"c": "é"}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = 1\nb = = 2\n", "line 2"),
        (b"a = 1\na = 2\n", "line 2"),
        (b"a = 1\nb = \xff\n", r"not UTF-8 text \(byte 10\)"),
        (b"a = " + b"[" * 5000, "recursion"),
        (b"a = " + b"9" * 5000, "digits"),
    ],
)
def test_invalid_toml_is_reported_in_one_line_with_the_file(tmp_path, content, says):
    path = written(tmp_path, content)
    with pytest.raises(BadValue, match=says) as raised:
        read_toml(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_are_reported(tmp_path):
    with pytest.raises(BadValue, match="no file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(BadValue, match=r"can't read .*: is a directory"):
        read_toml(tmp_path)


def test_lines_are_found_in_their_table(tmp_path):
    path = written(tmp_path, b'a = 1\n[set]\n# size = 0\nsize = 2\n\n[ sweep ]\n"size" = [3]\n')
    assert find_line(path, "a") == 1
    assert find_line(path, "size", "set") == 4
    assert find_line(path, "size", "sweep") == 7
    assert find_line(path, "size") is None


def test_lines_are_found_in_tables_of_other_forms(tmp_path):
    path = written(tmp_path, b'a = 1\nset.size = 2\n"set".kind = 3\nsweep = { size = [3] }\n[slurm]\ntime = 5\n')
    assert find_line(path, "size", "set") == 2
    assert find_line(path, "kind", "set") == 3
    assert find_line(path, "set") == 2
    assert find_line(path, "size", "sweep") == 4
    assert find_line(path, "slurm") == 5
    assert find_line(path, "a", "slurm") is None
