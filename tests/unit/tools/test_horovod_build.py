"""The compiler settings of `make horovod`, the place of its wheel, and its message when the build fails."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "tools" / "horovod"
XLA = "/tmp/build/horovod/tensorflow/xla_mpi_ops.cc"


@pytest.fixture
def build():
    spec = importlib.util.spec_from_file_location("horovod_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled_with(tmp_path, *arguments):
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
    compiler.chmod(0o755)
    command = [FOLDER / "cxx", *arguments]
    done = subprocess.run(command, env={"RIGDYNO_CXX": str(compiler)}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_older_standards_become_17_and_all_else_stays(tmp_path):
    given = ["-std=c++14", "-std=gnu++14", "-std=c++11", "-std=c++20", "-DNAME=a b", "-c", "some file.cc", "-o", ""]
    made = ["-std=c++17", "-std=gnu++17", "-std=c++17", *given[3:]]
    assert compiled_with(tmp_path, *given) == made


def test_without_a_gpu_the_kernels_for_xla_are_compiled_to_nothing(tmp_path):
    assert compiled_with(tmp_path, "-std=c++17", "-c", XLA) == ["-std=c++17", "-c", "-x", "c++", "/dev/null"]
    assert compiled_with(tmp_path, "-c", XLA, "-DHAVE_GPU=1") == ["-c", XLA, "-DHAVE_GPU=1"]
    assert compiled_with(tmp_path, "-c", "/x/mpi_ops.cc") == ["-c", "/x/mpi_ops.cc"]


def test_what_is_missing_is_one_line_with_the_command(build, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("Horovod can't be built here: there is no ")
    assert said.count("\n") == 1
    for name in ("g++", "cmake", "mpirun", "mpi.h"):
        assert f"no {name}" in said
    assert "apt-get install cmake g++ libopenmpi-dev make openmpi-bin" in said


def test_a_missing_framework_is_named_with_the_extra(build, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorflow" else found(name))
    assert "no tensorflow" in build.missing()
    assert "pip install 'rigdyno[horovod,tensorflow]'" in build.missing()


def test_a_wheel_is_kept_by_the_exact_versions_outside_of_the_tree(build, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.wheels() == tmp_path / "rigdyno" / "wheels"
    monkeypatch.setattr(build, "distribution_version", lambda names: {"torch": "2.13.0+cpu"}.get(names[0], "2.21.0"))
    known = build.versions()
    assert (known["horovod"], known["torch"], known["tensorflow"]) == ("0.28.1", "2.13.0+cpu", "2.21.0")
    assert known["python"].endswith(sys.version.partition(" ")[0])
    names = {build.key({**known, what: "other"}) for what in known}
    assert len(names) == len(known)
    assert build.key(known) not in names
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert build.wheels() == Path.home() / ".cache" / "rigdyno" / "wheels"


def test_a_kept_wheel_is_installed_and_nothing_is_built(build, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "missing", lambda: None)
    monkeypatch.setattr(build, "built", lambda folder: pytest.fail("it was built again"))
    commands = []
    monkeypatch.setattr(build.subprocess, "run", lambda command, check: commands.append(command))
    wheel = build.wheels() / build.key(build.versions()) / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert build.main() == 0
    [command] = commands
    assert command[-4:] == ["install", "--no-deps", "--force-reinstall", str(wheel)]
    assert str(wheel) in capsys.readouterr().out


def test_a_build_that_fails_leaves_no_wheel_and_says_where_its_log_is(build, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(build, "command", lambda place: [sys.executable, "-c", "print('no such header'); exit(1)"])
    folder = tmp_path / "wheels" / "some"
    assert build.built(folder) is None
    said = capsys.readouterr().err
    assert "no such header" in said
    assert str(folder.with_name("some.log")) in said
    assert [path.name for path in folder.parent.iterdir()] == ["some.log"]
