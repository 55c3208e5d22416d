"""Test the built wheel in a clean environment: it contains every file it needs, and downloads nothing."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from driving import environment

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory) -> Path:
    """Return a virtual environment with the wheel. It uses the packages of this one, but not this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source))
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("*.whl")
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    shutil.rmtree(source)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    # A path in a .pth file is searched, but .pth files found there (such as the one of this source tree) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv/bin"


def _run(*command: str, cwd: Path | None = None) -> str:
    answer = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_the_installed_wheel_is_imported(clean_environment, tmp_path):
    where = _run(str(clean_environment / "python"), "-c", "import rigdyno; print(rigdyno.__file__)", cwd=tmp_path)
    assert where.startswith(str(clean_environment.parent))


def test_the_command_works(clean_environment, tmp_path):
    command = str(clean_environment / "rigdyno")
    assert "tensor_add" in _run(command, "list", cwd=tmp_path)
    board = _run(command, "leaderboard", "device", cwd=tmp_path)
    assert "NVIDIA RTX 3090" in board
    assert "published" in board
    assert "it/s" in _run(command, "run", "tensor_add", "--set", "size=64", "--steps", "20", cwd=tmp_path)


def test_the_wheel_contains_every_module(clean_environment):
    (installed,) = (clean_environment.parent / "lib").glob("python*/site-packages/rigdyno")
    wanted = {path.relative_to(ROOT / "src/rigdyno") for path in (ROOT / "src/rigdyno").rglob("*") if _is_ours(path)}
    assert {path for path in wanted if not (installed / path).is_file()} == set()


def _is_ours(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
