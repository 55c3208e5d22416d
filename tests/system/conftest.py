"""Tests that need root. A test whose tools are missing is skipped, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Yield a function that mounts a small disk in memory."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(path)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            pytest.skip(f"can't mount here: {answer.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
