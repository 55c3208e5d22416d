"""Verdicts on scripted streams: what every rule speaks about, and what it leaves alone."""

import math

import numpy as np
import pytest

from rigdyno.analyse.steady import Steady, steady_window
from rigdyno.analyse.streams import TimeSpan, mean_reading, step_durations
from rigdyno.analyse.validity import thresholds
from rigdyno.analyse.validity.evidence import Evidence
from rigdyno.analyse.validity.rules import RULES, findings
from rigdyno.analyse.validity.verdict import (
    Finding,
    apply_limit,
    check_limit,
    check_precision,
    merge_over_processes,
    validity_of,
)
from rigdyno.base.errors import BadValue
from rigdyno.schema.record import Quality
from rigdyno.schema.samples import CLOCK_JUMPED
from scripted_rows import BEGIN_NS, NS, estimate, noisy, step_rows, telemetry_rows

QUIET = {
    "run_queue_wait_share": 0.015,
    "worker_cpu_share": 1.97,
    "cpu0": 0.99,
    "cpu1": 0.99,
    "psi_cpu_some": 0.012,
    "steal_share": 0.005,
    "frequency_mhz": 3000.0,
    "involuntary_switches": 30.0,
    "psi_memory_some": 0.0,
    "major_faults": 0.0,
    "worker_stopped_share": 0.0,
    "throttled_share": 0.0,
}


def evidence(seconds=None, *, rows=None, channels=None, telemetry=True, **known):
    rows = step_rows(noisy(1000) if seconds is None else seconds) if rows is None else rows
    if telemetry is True:
        telemetry = telemetry_rows(rows, **{**QUIET, **(channels or {})})
    steady = steady_window(step_durations(rows))
    return Evidence(**{"rows": rows, "steady": steady, "telemetry": telemetry, **known})


def judge(known):
    return validity_of(findings(known))


def without_run_queue(**channels):
    """Readings of a machine whose kernel doesn't tell how long threads waited."""
    return {"run_queue_wait_share": math.nan, **channels}


def neighbour(waited, others):
    return {"run_queue_wait_share": waited, "worker_cpu_share": 1.98 - others}


def between(first, last, inside=1.0):
    """Return a channel that reads `inside` for a part of the time, and zero otherwise."""
    return lambda share: np.where((share > first) & (share <= last), inside, 0.0)


def jumped(count, seconds=0.01):
    """Return a thousand steps; during `count` of them the clocks differed."""
    rows = step_rows(noisy(1000, seconds))
    rows["flags"][500 : 500 + count] = CLOCK_JUMPED
    return rows


def hanging_together():
    """Thirty steps on three plateaus, without a trend."""
    return np.repeat([0.101, 0.099, 0.101], 10) * noisy(30, 1.0, spread=0.001)


def telemetry_until(seconds):
    rows = step_rows(noisy(1000))
    whole = telemetry_rows(rows, **QUIET)
    return whole[whole["at_ns"] < BEGIN_NS + seconds * NS]


def drift(change):
    return noisy(1000, spread=0.005) * np.linspace(1, 1 + change, 1000)


THROTTLED = np.concatenate((noisy(1650, 1 / 300), noisy(1500, 1 / 55)))

# (expected code, severity, evidence): one line a case; every rule has at least one.
SPOKEN = [
    ("too_few_steps", "SUSPECT", evidence(noisy(9, 0.1))),
    ("too_few_steps", "SUSPECT", evidence([0.6])),
    ("too_few_steps", "INVALID", Evidence(rows=step_rows([]), steady=Steady(0, False, "no step"))),
    ("too_few_steps", "SUSPECT", evidence(hanging_together())),
    ("too_short", "SUSPECT", evidence(noisy(31, 0.0000467))),
    ("too_short", "SUSPECT", evidence(noisy(40))),
    ("never_settled", "SUSPECT", evidence(noisy(1000) * np.linspace(1.5, 1, 1000))),
    ("drifting", "SUSPECT", evidence(drift(0.06))),
    ("drifting", "SUSPECT", evidence(drift(-0.06))),
    ("throttled", "INVALID", evidence(THROTTLED)),
    ("throttled", "INVALID", evidence(THROTTLED, telemetry=None)),
    ("throttled", "INVALID", evidence(THROTTLED, channels={"run_queue_wait_share": 0.8, "throttled_share": 0.78})),
    ("throttled", "SUSPECT", evidence(channels={"run_queue_wait_share": 0.5, "throttled_share": 0.49})),
    ("other_tenants", "SUSPECT", evidence(channels=neighbour(0.1, 0.1))),
    ("other_tenants", "INVALID", evidence(channels=neighbour(0.7, 0.7))),
    ("other_tenants", "SUSPECT", evidence(channels={"steal_share": 0.06})),
    ("other_tenants", "INVALID", evidence(channels={"steal_share": 0.3})),
    ("other_tenants", "SUSPECT", evidence(channels=without_run_queue(psi_cpu_some=0.5))),
    ("other_tenants", "SUSPECT", evidence(channels=without_run_queue(psi_cpu_some=1.0))),
    ("other_tenants", "SUSPECT", evidence(channels=without_run_queue(involuntary_switches=200.0))),
    ("memory_pressure", "SUSPECT", evidence(channels={"psi_memory_some": 0.05})),
    ("memory_pressure", "SUSPECT", evidence(channels={"psi_memory_some": 0.5})),  # others' memory, perhaps
    ("memory_pressure", "SUSPECT", evidence(channels={"psi_memory_some": 0.05, "major_faults": 40.0})),
    ("memory_pressure", "INVALID", evidence(channels={"psi_memory_some": 0.5, "major_faults": 40.0})),
    ("memory_pressure", "SUSPECT", evidence(channels={"psi_memory_some": math.nan, "major_faults": 400.0})),
    ("stopped", "SUSPECT", evidence(channels={"worker_stopped_share": between(0.5, 0.53)})),
    ("stopped", "INVALID", evidence(channels={"worker_stopped_share": between(0.5, 0.7)})),
    ("clock_jumped", "SUSPECT", evidence(rows=jumped(50))),
    ("clock_jumped", "INVALID", evidence(rows=jumped(400))),
    ("clock_changes", "SUSPECT", evidence(channels={"frequency_mhz": lambda share: np.where(share < 0.5, 3000, 2400)})),
    ("dead_sampler", "SUSPECT", evidence(telemetry=telemetry_until(6))),
    ("dead_sampler", "SUSPECT", evidence(telemetry=telemetry_until(0))),
    ("dead_sampler", "SUSPECT", evidence(telemetry=None, sampler_exit_code=-9)),
    ("wrong_result", "INVALID", evidence(quality=Quality(correct=False))),
    ("loss_not_finite", "INVALID", evidence(quality=Quality(loss_finite=False, first_loss=2.3, last_loss=math.nan))),
    ("loss_not_finite", "INVALID", evidence(quality=Quality(loss_finite=False))),
    ("loss_not_falling", "SUSPECT", evidence(quality=Quality(first_loss=2.3, last_loss=2.4))),
    ("beyond_memory", "SUSPECT", evidence(memory_bytes=528, largest={"batch_size": 500})),
]

SILENT = [
    evidence(),
    evidence(telemetry=None),
    evidence([0.01] * 100),
    evidence(noisy(10, 0.1)),
    evidence(channels=dict.fromkeys(QUIET, math.nan)),
    # Threads that wait for each other: no other process used the cores.
    evidence(channels={"run_queue_wait_share": 0.44, "psi_cpu_some": 0.23}),
    evidence(channels={"run_queue_wait_share": 1.18, "psi_cpu_some": 0.56, "worker_cpu_share": 1.96}),
    # Others were busy, but not in our way.
    evidence(channels={"worker_cpu_share": 0.99}),
    evidence(channels={"frequency_mhz": lambda share: 3000 + 100 * np.sin(40 * share)}),
    # Waiting that only the worker's own quota explains, though it is a small one.
    evidence(channels={"run_queue_wait_share": 0.04, "throttled_share": 0.04}),
    # Reading a mapped file for the first time: the kernel knows that memory isn't short.
    evidence(channels={"major_faults": 400.0}),
    # Threads that take the cores from each other: the run queue says that no other process did.
    evidence(channels={"involuntary_switches": 900.0}),
    evidence(noisy(30, 0.1, spread=0.1)),
    evidence(drift(0.01)),
    evidence(quality=Quality(correct=True, loss_finite=True, first_loss=2.3, last_loss=0.4)),
    evidence(sampler_exit_code=0),
]


@pytest.mark.parametrize(("code", "severity", "known"), SPOKEN)
def test_speaks(code, severity, known):
    found = judge(known)
    # A stream that slows down halfway has no steady state either.
    expected = [code, "never_settled"] if (code, severity) == ("throttled", "INVALID") else [code]
    assert [reason.code for reason in found.reasons] == expected
    assert found.verdict == severity
    assert found.reasons[0].sentence


@pytest.mark.parametrize("known", SILENT)
def test_leaves_alone(known):
    found = judge(known)
    assert (found.verdict, found.reasons) == ("VALID", ())


def test_no_rule_that_can_never_fire():
    assert {code for code, _, _ in SPOKEN} == set(RULES)


def test_the_worst_counts_and_comes_first():
    found = judge(evidence(noisy(9, 0.1), quality=Quality(correct=False)))
    assert found.verdict == "INVALID"
    assert [reason.code for reason in found.reasons] == ["wrong_result", "too_few_steps"]


def test_where_waiting_can_t_be_attributed_it_counts():
    rows = step_rows(noisy(1000))
    telemetry = telemetry_rows(rows, run_queue_wait_share=0.4)
    assert judge(evidence(telemetry=telemetry)).verdict == "INVALID"


def test_a_window_between_two_readings_is_judged_by_the_next_one():
    """Seen on a busy machine: 1.4 ms of steps, all of which had waited, and no rule reported it."""
    rows = step_rows(noisy(31, 0.0000467))
    telemetry = telemetry_rows(step_rows(noisy(1000)), hertz=2.0, **{**QUIET, **neighbour(0.7, 0.7)})
    found = judge(evidence(rows=rows, telemetry=telemetry))
    assert [reason.code for reason in found.reasons] == ["other_tenants", "too_short"]
    assert found.verdict == "INVALID"


def test_readings_count_by_the_time_that_they_cover():
    """A tenth of the window in one reading that waited for all of it, the rest in one that didn't."""
    telemetry = telemetry_rows(step_rows([1.0] * 10), hertz=1.0, x=0.0)
    telemetry["at_ns"] = BEGIN_NS + np.arange(len(telemetry)) * NS
    telemetry["x"] = np.arange(len(telemetry)) == 3
    late = TimeSpan(BEGIN_NS + int(2.9 * NS), BEGIN_NS + int(3.9 * NS))
    assert mean_reading(telemetry, "x", late) == pytest.approx(0.1)
    early = TimeSpan(BEGIN_NS + int(2.2 * NS), BEGIN_NS + int(2.3 * NS))
    assert mean_reading(telemetry, "x", early) == 1.0
    assert mean_reading(telemetry, "x", TimeSpan(BEGIN_NS + 100 * NS, BEGIN_NS + 101 * NS)) is None


def test_only_the_steady_window_counts():
    seconds = noisy(1000)
    seconds[:200] *= 2
    loud_at_first = {"steal_share": lambda share: np.where(share < 0.3, 0.9, 0.0)}
    assert judge(evidence(seconds, channels=loud_at_first)).verdict == "VALID"


def test_a_hole_in_the_telemetry():
    rows = step_rows(noisy(1000))
    telemetry = telemetry_rows(rows, **QUIET)
    at = telemetry["at_ns"] - BEGIN_NS
    holed = telemetry[(at < 3 * NS) | (at > 6 * NS)]
    assert [finding.code for finding in findings(evidence(telemetry=holed))] == ["dead_sampler"]


def test_a_stop_is_given_in_seconds():
    """Four readings are 0.4 of ten seconds."""
    found = judge(evidence(channels={"worker_stopped_share": between(0.5, 0.54)}))
    assert "stopped for about 0.4 s of 10 s" in found.reasons[0].sentence


def test_how_many_steps_a_jump_touched():
    [found] = findings(evidence(rows=jumped(50)))
    assert "50 of 1,000 steps" in found.sentence


def test_a_quota_is_no_neighbour_even_while_others_are_busy():
    busy = {"run_queue_wait_share": 0.5, "throttled_share": 0.5, "worker_cpu_share": 1.0, "cpu0": 1.0, "cpu1": 1.0}
    assert [finding.code for finding in findings(evidence(channels=busy))] == ["throttled"]


def test_old_runs_without_the_newer_channels_stay_readable():
    old = {name: QUIET[name] for name in ("run_queue_wait_share", "worker_cpu_share", "cpu0", "cpu1", "steal_share")}
    rows = step_rows(noisy(1000))
    assert judge(evidence(telemetry=telemetry_rows(rows, **old))).verdict == "VALID"


def test_steps_that_hang_together_say_what_they_are_worth():
    [found] = findings(evidence(hanging_together()))
    assert "30 rows depend on each other" in found.sentence


def test_a_larger_budget_is_advised_where_there_is_one():
    for seconds in (noisy(9, 0.1), noisy(20, 0.01), hanging_together()):
        [advised], [plain] = (findings(evidence(seconds, has_budget=budget)) for budget in (True, False))
        assert advised.sentence == f"{plain.sentence}; try a larger --budget"
        assert "budget" not in plain.sentence


def test_the_kind_is_named():
    found = judge(evidence(noisy(9), steps_name="memmove steps"))
    assert "memmove steps" in found.reasons[0].sentence


def test_thresholds_are_in_order():
    assert 0.02 < thresholds.PUSHED_ASIDE_SUSPECT < thresholds.PUSHED_ASIDE_INVALID < 0.38
    assert 0.02 < thresholds.STEAL_SUSPECT < thresholds.STEAL_INVALID


class TestVerdict:
    def test_a_figure_that_physics_forbids(self):
        found = check_limit(estimate(120, 110, 130), estimate(100, 95, 104))
        assert (found.code, found.severity) == ("above_limit", "INVALID")
        assert found.sentence

    def test_a_figure_within_the_margin_of_the_limit(self):
        assert check_limit(estimate(108, 104, 112), estimate(100, 95, 104)) is None

    def test_an_interval_that_says_nothing(self):
        found = check_precision(estimate(100, 70, 140))
        assert (found.code, found.severity) == ("imprecise", "SUSPECT")
        assert "70.0 item/s to 140 item/s" in found.sentence
        assert check_precision(estimate(100, 78, 124)) is None

    def test_a_value_without_an_interval_is_not_judged_by_its_width(self):
        assert check_precision(estimate(100, 1, 1000).without_interval("by hand")) is None

    def test_a_limit_that_is_learnt_later(self):
        before = judge(evidence(noisy(9, 0.1)))
        after = apply_limit(before, estimate(120, 110), estimate(100, 95, 104))
        assert after.verdict == "INVALID"
        assert [reason.code for reason in after.reasons] == ["above_limit", "too_few_steps"]
        assert "5.8 % above" in after.reasons[0].sentence
        assert apply_limit(before, estimate(90), estimate(100)) is before

    def test_a_limit_in_another_unit(self):
        with pytest.raises(BadValue, match="byte/s"):
            apply_limit(judge(evidence()), estimate(1), estimate(1, unit="byte/s"))

    def test_processes_are_merged(self):
        suspect, invalid = Finding("SUSPECT", "a", "mild"), Finding("INVALID", "a", "grave")
        found = merge_over_processes([[suspect], [], [invalid, Finding("SUSPECT", "b", "other")]])
        assert found == [
            Finding("INVALID", "a", "grave (2 of 3 processes)"),
            Finding("SUSPECT", "b", "other (1 of 3 processes)"),
        ]

    def test_one_process_speaks_without_counting(self):
        only = Finding("SUSPECT", "a", "mild")
        assert merge_over_processes([[only]]) == [only]

    def test_no_findings_are_valid(self):
        assert validity_of([]).verdict == "VALID"
