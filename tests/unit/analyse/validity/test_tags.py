"""The tags of each step, by hand and against a brute-force search."""

import numpy as np
import pytest

from rigdyno.analyse.validity.tags import tag_counts, tags
from rigdyno.schema.samples import CLOCK_JUMPED, telemetry_fields
from scripted_rows import BEGIN_NS, NS, noisy, step_rows, telemetry_rows

QUIET = {
    "run_queue_wait_share": 0.01,
    "worker_cpu_share": 1.97,
    "cpu0": 0.99,
    "cpu1": 0.99,
    "steal_share": 0.0,
    "psi_memory_some": 0.0,
    "worker_stopped_share": 0.0,
    "throttled_share": 0.0,
}


def readings(at_seconds, **channels):
    found = np.zeros(len(at_seconds), dtype=np.dtype(list(telemetry_fields(list(channels)))))
    found["at_ns"] = [BEGIN_NS + round(at * NS) for at in at_seconds]
    for name, values in channels.items():
        found[name] = values
    return found


def test_a_reading_tells_of_the_time_before_it():
    """Steps of a second; the readings at 2.0 and 3.0 say that the worker was stopped between them."""
    rows = step_rows([1.0] * 5)
    found = tags(rows, readings([1.0, 2.0, 3.0, 4.0], worker_stopped_share=[0, 0, 1, 0]))
    assert list(found["stopped"]) == [False, False, True, False, False]


def test_a_long_step_covers_several_readings():
    rows = step_rows([0.5, 3.0, 0.5])
    found = tags(rows, readings([0.5, 1.0, 2.0, 3.0, 4.0], steal_share=[0, 0, 0.5, 0, 0]))
    assert list(found["stolen"]) == [False, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    rows = step_rows(rng.uniform(0.01, 0.4, 60))
    at = np.sort(rng.uniform(-1, 14, 40))
    loud = rng.random(40) < 0.2
    found = tags(rows, readings(at, worker_stopped_share=loud))["stopped"]
    edges = [-np.inf, *(BEGIN_NS + np.round(at * NS))]
    expected = [
        any(loud[i] and row["start_ns"] < edges[i + 1] and row["end_ns"] > edges[i] for i in range(40)) for row in rows
    ]
    assert list(found) == expected


def test_steps_are_counted_not_rows_and_nothing_is_dropped():
    rows = step_rows(noisy(100, 0.1), steps=7, warm_up=5)
    rows["flags"][50:53] |= CLOCK_JUMPED
    assert tag_counts(rows, None) == {"warm-up": 35, "clock jumped": 21}
    assert all(len(mask) == 100 for mask in tags(rows, telemetry_rows(rows, **QUIET)).values())


def test_a_quiet_stream_bears_none():
    rows = step_rows(noisy(1000))
    assert tag_counts(rows, telemetry_rows(rows, **QUIET)) == {}


@pytest.mark.parametrize(
    ("tag", "channels"),
    [
        ("waited", {"run_queue_wait_share": 0.6, "worker_cpu_share": 1.3}),
        ("stolen", {"steal_share": 0.3}),
        ("stopped", {"worker_stopped_share": 1.0}),
        ("memory pressure", {"psi_memory_some": 0.4}),
        ("throttled", {"throttled_share": 0.5, "run_queue_wait_share": 0.5, "worker_cpu_share": 1.4}),
    ],
)
def test_every_disturbance_has_its_tag(tag, channels):
    rows = step_rows(noisy(100))
    assert tag_counts(rows, telemetry_rows(rows, **{**QUIET, **channels})) == {tag: 100}


def test_threads_that_wait_for_each_other_have_not_waited_for_others():
    rows = step_rows(noisy(100))
    assert tag_counts(rows, telemetry_rows(rows, **{**QUIET, "run_queue_wait_share": 0.9})) == {}


def test_where_others_use_of_the_cores_is_unknown_all_waiting_counts():
    rows = step_rows(noisy(100))
    assert tag_counts(rows, telemetry_rows(rows, run_queue_wait_share=0.9)) == {"waited": 100}


def test_what_could_not_be_read_bears_no_tag():
    rows = step_rows(noisy(100))
    assert tag_counts(rows, telemetry_rows(rows, **dict.fromkeys(QUIET, np.nan))) == {}
    assert tag_counts(rows, telemetry_rows(rows, **QUIET)[:0]) == {}


def test_no_rows():
    assert tag_counts(step_rows([]), readings([1.0], worker_stopped_share=[1])) == {}
