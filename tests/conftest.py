from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _away_from_home(monkeypatch, tmp_path):
    """No test reads the user's configuration, or leaves runs behind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.delenv("RIGDYNO_RUNS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


# In the background of a shell this process ignores Ctrl-C, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def one_thread():
    """Two threads that wait for each other crawl on a machine that does something else."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
