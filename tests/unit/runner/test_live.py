from __future__ import annotations

import struct

import pytest

from rigdyno.runner.orchestrate import LiveRate
from rigdyno.schema.samples import STEP_STRUCT
from support import write_steps


def test_the_live_rate_is_that_of_the_last_two_seconds(tmp_path):
    path = tmp_path / "steps.0.rows"
    write_steps(path, [500_000_000] * 10 + [100_000_000] * 30)
    assert LiveRate(path).rate() == pytest.approx(10.0)


def test_there_is_no_rate_before_the_first_row(tmp_path):
    path = tmp_path / "steps.0.rows"
    live = LiveRate(path)
    assert live.rate() is None
    path.write_bytes(b'{"format":1')  # the header is just being written
    assert live.rate() is None


def test_reading_continues_where_it_stopped_and_waits_for_a_whole_row(tmp_path):
    path = tmp_path / "steps.0.rows"
    write_steps(path, [1_000_000_000])
    live = LiveRate(path)
    assert live.rate() == pytest.approx(1.0)
    row = struct.pack(STEP_STRUCT, 2_000_000_000, 3_000_000_000, 9.0, 1, 0, 0)
    with path.open("ab") as file:
        file.write(row[:20])
    assert live.rate() == pytest.approx(1.0)
    with path.open("ab") as file:
        file.write(row[20:])
    assert live.rate() == pytest.approx(5.0)  # 10 items in 2 s
