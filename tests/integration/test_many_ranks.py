"""Twelve real ranks of which the last is slow: whatever reads them must blame that one, and not rank 3."""

from __future__ import annotations

from pathlib import Path

from driving import only_run, rigdyno
from rigdyno import api
from rigdyno.analyse.shortfall import shortfall
from rigdyno.schema.measured import Phases

PLUGIN = Path(__file__).parent / "plugin"


def phases(folder: Path, *arguments: str) -> Phases:
    folder.mkdir()
    answer = rigdyno("run", "slow_rank", *arguments, "--steps", "12", cwd=folder, PYTHONPATH=str(PLUGIN))
    assert answer.returncode == 0, answer.stderr
    [measurement] = api.load(only_run(folder).path).measurements
    assert measurement.phases is not None
    return measurement.phases


def test_the_slow_one_of_twelve_is_found(tmp_path):
    together = phases(tmp_path / "twelve", "--ranks", "12", "--threads", "1")
    assert list(together.by_rank) == list(range(12))
    data = {rank: spent["data"] for rank, spent in together.by_rank.items()}
    assert max(data, key=lambda rank: data[rank]) == 11
    assert data[11] >= 0.15
    alone = phases(tmp_path / "one")
    assert shortfall(alone, together).slowest_rank == 11
