"""The live view: what is shown of a machine, lines for a pipe."""

import math

import pytest

from rigdyno.features.watch.display import MeterDisplay
from rigdyno.schema.channel import STATES, Channel

POWER = Channel("w", "W", "power", device="gpu0", scope="card", sensor="nvml")
COUNTER = Channel("gj", "J", "energy", "counter", "gpu0", scope="card", sensor="nvml")
PACKAGE = Channel("pj", "J", "energy", "counter", "package0", scope="package", sensor="rapl")
CORES = [Channel(f"cpu{n}", "share", "utilisation", device=f"cpu{n}", sensor="host") for n in range(4)]
STATE = Channel("nvml_probe_state", "code", "state", sensor="nvml")
OTHER = Channel("psi_cpu_some", "share", sensor="host")


@pytest.fixture
def watched():
    return MeterDisplay([POWER, COUNTER, PACKAGE, *CORES, STATE, OTHER], {"ina3221": "why; fix"})


def test_a_counter_is_shown_as_power_and_a_card_with_both_once(watched):
    for second, (watts, joules) in enumerate([(200.0, 50.0), (210.0, 85.0)]):
        watched.add(second * 10**9, [watts, 9999.0, joules, 0.1, 0.2, 0.3, 0.4, 0.0, 0.5], STATES)
    assert watched.line("12:00:00") == "12:00:00 power gpu0 210 W; power package0 35.0 W; usage of 4 cores 25 %"
    assert [title for title, _, _ in watched.rows()] == ["power gpu0", "power package0", "usage of 4 cores"]


def test_a_slow_sensor_keeps_its_last_value_and_a_probe_in_trouble_is_named(watched):
    watched.add(0, [200.0, 1.0, 2.0, 0, 0, 0, 0, 0.0, 0.0], STATES)
    watched.add(10**9, [math.nan, math.nan, math.nan, 0, 0, 0, 0, 1.0, 0.0], STATES)
    assert watched.line("t") == "t power gpu0 200 W; usage of 4 cores 0.0 %; nvml: blocked; rapl: no reading yet"
    assert watched.notes() == ["nvml: blocked", "rapl: no reading yet", "ina3221: why; fix"]


def test_a_line_names_each_probe_that_has_not_delivered_a_first_reading(watched):
    unread = [math.nan] * 7
    watched.add(0, [*unread, 0.0, 0.0], STATES)
    assert watched.line("t") == "t nvml: no reading yet; rapl: no reading yet; host: no reading yet"
    watched.add(10**9, [200.0, 1.0, *unread[2:], 0.0, 0.0], STATES)
    assert watched.line("t") == "t power gpu0 200 W; rapl: no reading yet; host: no reading yet"
    for second in (2, 3):
        watched.add(second * 10**9, [math.nan, 1.0, 2.0, 0, 0, 0, 0, 0.0, 0.0], STATES)
    assert watched.line("t") == "t power gpu0 200 W; power package0 0 W; usage of 4 cores 0.0 %"


def test_a_machine_without_any():
    empty = MeterDisplay([], {})
    empty.add(0, [], STATES)
    assert empty.line("t") == "t nothing can be read"
