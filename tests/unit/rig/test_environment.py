"""Tests of describing the environment of a run, without personal names."""

import subprocess

from rigdyno.rig import environment as module
from rigdyno.rig.environment import describe_environment, read_git_state, select_speed_variables


def test_only_variables_that_change_speed_are_kept():
    variables = {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0", "PASSWORD": "x", "HOSTNAME": "y"}
    assert select_speed_variables(variables) == {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0"}


def test_no_user_name_leaks_through_a_path(monkeypatch):
    monkeypatch.setattr(module, "_home_name", lambda: "ada")
    variables = {
        "USER": "ada.l",
        "LD_PRELOAD": "/home/grace/lib/a.so:/scratch/ada/b.so",
        "TORCH_HOME": "/Users/grace/torch",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_ada.l/x",
        "OMP_PROC_BIND": "ada",
    }
    assert select_speed_variables(variables) == {
        "LD_PRELOAD": "~/lib/a.so:/scratch/~/b.so",
        "OMP_PROC_BIND": "ada",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_~/x",
        "TORCH_HOME": "~/torch",
    }


def test_git_state_has_the_commit_and_local_changes(tmp_path):
    package = tmp_path / "src/rigdyno"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1\n")
    assert read_git_state(package) is None
    _git(tmp_path, "init")
    assert read_git_state(package) is None  # no commit yet
    _git(tmp_path, "add", ".")
    _git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "one")
    clean = read_git_state(package)
    assert clean is not None
    assert len(clean.commit) == 40
    assert not clean.dirty
    (package / "a.py").write_text("2\n")
    changed = read_git_state(package)
    assert changed is not None
    assert changed.dirty


def test_another_checkout_around_the_package_is_ignored(tmp_path):
    _git(tmp_path, "init")
    package = tmp_path / ".venv/lib/site-packages/rigdyno"
    package.mkdir(parents=True)
    assert read_git_state(package) is None


def test_without_git_there_is_no_state(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git_state(tmp_path / "src/rigdyno") is None


def test_the_environment_of_this_process_has_its_packages():
    found = describe_environment()
    assert {"numpy", "msgspec"} <= set(found.packages)


def _git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
