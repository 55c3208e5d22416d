"""The check that another interpreter has the same Rigdyno. Most interpreters here are small scripts around this one."""

import shutil
import sys
from pathlib import Path

import pytest

import rigdyno
from rigdyno.base.errors import UsageError
from rigdyno.features.duel import same_version
from rigdyno.features.duel.same_version import fingerprint, require_same_rigdyno

PACKAGE = Path(rigdyno.__file__).parent


@pytest.fixture
def copy(tmp_path):
    """The package's code once more."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "rigdyno", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "site"


def script(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def interpreter(tmp_path, site):
    return script(tmp_path, f'PYTHONPATH="{site}" exec "{sys.executable}" "$@"')


def test_this_interpreter_is_its_own_twin():
    require_same_rigdyno(sys.executable)


def test_a_copy_at_another_place_is_the_same(tmp_path, copy):
    require_same_rigdyno(interpreter(tmp_path, copy))


def changed_byte(package):
    path = package / "analyse" / "pairs.py"
    path.write_bytes(path.read_bytes() + b" ")


def one_more_file(package):
    (package / "workloads" / "mine.py").write_text("")


def one_file_less(package):
    (package / "workloads" / "mnist_cnn.py").unlink()


def renamed_file(package):
    (package / "workloads" / "mnist_cnn.py").rename(package / "workloads" / "mnist.py")


@pytest.mark.parametrize("change", [changed_byte, one_more_file, one_file_less, renamed_file])
def test_the_slightest_change_is_another_rigdyno(tmp_path, copy, change):
    change(copy / "rigdyno")
    python = interpreter(tmp_path, copy)
    with pytest.raises(UsageError) as error:
        require_same_rigdyno(python)
    assert str(error.value) == f"{python} has another Rigdyno than this one; install the same in both environments"


def test_compiled_files_do_not_count(tmp_path, copy):
    cache = copy / "rigdyno" / "__pycache__"
    cache.mkdir()
    (cache / "api.cpython-311.pyc").write_bytes(b"")
    require_same_rigdyno(interpreter(tmp_path, copy))


@pytest.mark.parametrize("name", ["no/such/python", "", "no-such-python-on-the-path"])
def test_no_interpreter(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"^can't start '{name}': "):
        require_same_rigdyno(name)


def test_a_file_that_cannot_be_run(tmp_path):
    (tmp_path / "python").write_text("not a program")
    with pytest.raises(UsageError, match="permission denied"):
        require_same_rigdyno(str(tmp_path / "python"))


def test_a_program_that_no_system_knows(tmp_path):
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF\0\0\0")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=r"^can't start "):
        require_same_rigdyno(str(path))


@pytest.mark.parametrize("text", ["true", "echo hello", "cat"])
def test_a_program_that_is_no_python(tmp_path, text):
    python = script(tmp_path, text)
    with pytest.raises(UsageError, match="is it a Python interpreter"):
        require_same_rigdyno(python)


def test_a_python_without_rigdyno(tmp_path):
    python = script(tmp_path, f'exec "{sys.executable}" -S -I "$@"')
    with pytest.raises(UsageError, match="has no Rigdyno, or an older one; install the same"):
        require_same_rigdyno(python)


def test_one_that_never_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(same_version, "SECONDS", 0.05)
    with pytest.raises(UsageError, match="gave no answer within"):
        require_same_rigdyno(script(tmp_path, "exec sleep 60"))


def test_the_fingerprint_is_stable():
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 32
