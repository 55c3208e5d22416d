"""Every threshold of the validity rules, with its reason; and the table of all rules, for docs/measuring.md.

'Quiet' and 'neighbour' are measurements on a virtual machine with 2 cores: with the step loop alone, and with one other
process that never sleeps. Thresholds of warm-up and throttling are in steady.py and soak.py, where they have other uses
too; the margin above a physical limit is here, too.
"""

from __future__ import annotations

from typing import NamedTuple

from rigdyno.base.units import show_percent
from rigdyno.schema.spec import ROWS_FOR_A_VERDICT

# The meter continues until it has this many, if the budget allows.
FEW_ROWS = ROWS_FOR_A_VERDICT

# Seconds from the first steady row to the last. The sampler reads twice a second: in less time it can't have seen what
# the machine did, and a burst of a neighbour lasts longer.
LEAST_SECONDS = 0.5

# Thirty correlated rows may be worth four independent ones, and their interval claims too much. Among simulated streams
# of independent rows, none of 30 or 20 rows was judged worth fewer than five, but 14 % of those of ten rows were: below
# twenty rows, correlation can't be distinguished from chance.
FEW_INDEPENDENT = 5.0

CORRELATION_ROWS = 20

# Half-width of the 95 % interval of the throughput, as a share of it. At 25 %, a factor of 1.5 is hardly detectable.
# With other load on both cores, streams of 2 to 4 s had 0.25 to 1.
IMPRECISE = 0.25

# How far the sum of the phases may differ from the time of the step: there are a few calls between them.
UNEXPLAINED = 0.02

# A trend within the steady window: twice the difference between processes of the same code (1.5 %). From 10 % on, the
# stream counts as never settled.
DRIFT_CHANGE = 0.03

# Core time that other tenants took while our threads waited in the run queue. Quiet: 0.012 to 0.017 of a core for steps
# of 1 and 2 threads. A neighbour: 0.38 to 0.76. A tenth of one of two cores costs 5 %, which is more than most
# differences of interest; from a quarter on, the figure is dominated by the neighbour.
PUSHED_ASIDE_SUSPECT = 0.05

PUSHED_ASIDE_INVALID = 0.25

# PSI counts all waiting for a core on the machine, including that of our threads for each other. Quiet: 0.01 for 2
# threads on 2 cores, but 0.23 for two pools of threads that alternate, and 0.56 for 4 threads on 2 cores. A neighbour:
# 0.50. It can't tell who caused it: it counts only if the run queue can't be read, and is never INVALID.
PRESSURE_SUSPECT = 0.40

# How often per second a core was taken from the worker's threads. Nearly quiet: 53 for 2 threads on 2 cores. A
# neighbour on each core: 183 to 257. With more threads than cores, they preempt each other: it counts only if the run
# queue can't be read.
SWITCHES_SUSPECT = 120.0

# Core time during which the quota of the worker's own control group was used up; 0 without a quota. The threshold is
# that of other tenants. A constant quota is no fault, so it is never INVALID; one that begins halfway shows as a fall
# of the rate (soak.py).
QUOTA_SUSPECT = 0.05

# Share of the time during which some task waited for memory: reclaiming pages, or loading evicted pages again. Quiet:
# 0.000. A worker whose control group held half of the file that its steps read: 0.20.
MEMORY_PRESSURE_SUSPECT = 0.02

MEMORY_PRESSURE_INVALID = 0.20

# Pages per second that the worker fetched from disk, including swap. Quiet: 0 once all is loaded. The worker above:
# 150. At 0.1 to 1 ms each, ten are up to 1 % of the time. The first reading of a mapped file costs such faults too,
# without any shortage: alone, they count only if the kernel doesn't report pressure.
MAJOR_FAULTS_SUSPECT = 10.0

# A process isn't stopped by chance, so every such reading is reported. A few tenths of a second in ten change a figure
# by a few percent, which the other steps outweigh; from 10 % of the time on they don't.
STOPPED_INVALID = 0.10

# Share of the time in rows during which the clocks disagreed. Rows are written twice a second, so a clock that was set
# once affects 5 % of a run of ten seconds; the rest of the stream can't outweigh a quarter.
CLOCK_JUMPED_INVALID = 0.25

# Share of the time that the hypervisor gave to other guests. Quiet: up to 0.02; at 0.056 short steps took twice
# as long.
STEAL_SUSPECT = 0.04

STEAL_INVALID = 0.20

# Change between the medians of eighths of the window. Clocks of idle cores and turbo steps vary by a few percent.
CLOCK_CHANGE = 0.10

CLOCK_PARTS = 8

# Share by which the energy counter of a GPU and the integral of its power may differ: sensors are accurate to 5 %, and
# GPUs that sample a quarter of the time were off by 40 %.
METERS_DISAGREE = 0.10

# Share of readings in which a GPU reports a lower clock because of heat or its supply. Single ones change no figure.
CARD_THROTTLED = 0.10

# The sampler reads twice a second; on a busy machine a reading may be late by some tenths of a second.
SAMPLER_GAP_SECONDS = 2.0

# How far the lower bound of a figure may exceed the upper bound of a physical limit. The limit is itself measured on
# the same noisy machine, by a kernel that may not be the best possible.
LIMIT_MARGIN = 0.05


class VerdictRule(NamedTuple):
    """What makes a figure SUSPECT and INVALID by one rule; empty if it never does."""

    suspect: str = ""
    invalid: str = ""


# Every rule by its code. docs/measuring.md shows this table, and no finding has another code.
VERDICT_RULES = {
    "too_few_steps": VerdictRule(
        f"fewer than {FEW_ROWS} steady rows; or at least {CORRELATION_ROWS} that are worth fewer than "
        f"{FEW_INDEPENDENT:g} independent ones",
        "no steady row",
    ),
    "too_short": VerdictRule(f"the steady rows span less than {LEAST_SECONDS:g} s, too little for the sampler"),
    "imprecise": VerdictRule(
        f"the 95 % interval of the throughput is wider than {show_percent(IMPRECISE)} on one side, in a process or "
        "over processes"
    ),
    "never_settled": VerdictRule("the steps never became steady"),
    "drifting": VerdictRule(f"a significant trend of more than {show_percent(DRIFT_CHANGE)} within the steady window"),
    "throttled": VerdictRule(
        f"the CPU quota of the worker's control group took {QUOTA_SUSPECT:g} of a core from the steps",
        "the rate of the last third is below 0.8 of the early one and stays there in a stream of at least 20 s, or "
        "below 0.6 in one of at least 9 s, and no other waiting explains it",
    ),
    "slowed_down": VerdictRule("a soak lost as much, but was too short, or other load may explain it"),
    "other_tenants": VerdictRule(
        f"other tenants took {PUSHED_ASIDE_SUSPECT:g} of a core from the steps, or steal was "
        f"{show_percent(STEAL_SUSPECT)}",
        f"{PUSHED_ASIDE_INVALID:g} of a core, or {show_percent(STEAL_INVALID)} steal",
    ),
    "memory_pressure": VerdictRule(
        f"tasks waited for memory {show_percent(MEMORY_PRESSURE_SUSPECT)} of the time",
        f"{show_percent(MEMORY_PRESSURE_INVALID)}, and the worker itself fetched pages from the disk",
    ),
    "stopped": VerdictRule(
        "the worker was stopped by a signal or a debugger", f"for {show_percent(STOPPED_INVALID)} of the time"
    ),
    "clock_changes": VerdictRule(
        f"the processor's clock differs by more than {show_percent(CLOCK_CHANGE)} between parts of the window"
    ),
    "clock_jumped": VerdictRule(
        "the clock of the steps and the wall clock disagree",
        f"for {show_percent(CLOCK_JUMPED_INVALID)} of the time, or time ran backwards",
    ),
    "unexplained": VerdictRule(f"the phases of a step differ from the step by more than {show_percent(UNEXPLAINED)}"),
    "meters_disagree": VerdictRule(
        f"the energy counter and the power readings of a GPU are more than {show_percent(METERS_DISAGREE)} apart"
    ),
    "card_throttled": VerdictRule(
        "a GPU lowered its clock for heat, a hardware slowdown or a power brake in "
        f"{show_percent(CARD_THROTTLED)} of the readings"
    ),
    "above_limit": VerdictRule(
        "",
        f"the lower bound of the figure is more than {show_percent(LIMIT_MARGIN)} above the upper bound of the "
        "machine's own limit",
    ),
    "dead_sampler": VerdictRule(f"the sampler died, or telemetry has a gap of more than {SAMPLER_GAP_SECONDS:g} s"),
    "wrong_result": VerdictRule("", "the workload's own check failed"),
    "loss_not_finite": VerdictRule("", "the training loss is infinite or not a number"),
    "loss_not_falling": VerdictRule("the last training loss isn't below the first"),
    "beyond_memory": VerdictRule("a search found an option that fits, and the process took more memory than allowed"),
    "damaged_samples": VerdictRule("", "the stored rows can't be right; such a process gives no figure"),
}


def markdown_table() -> str:
    """Return the table of all rules for the documentation."""
    rows = [f"| `{code}` | {rule.suspect} | {rule.invalid} |" for code, rule in VERDICT_RULES.items()]
    return "\n".join(["| reason | SUSPECT | INVALID |", "|---|---|---|", *rows]).replace("|  |", "| |")
