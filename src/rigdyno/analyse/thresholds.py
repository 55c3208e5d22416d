"""From where on a figure isn't to be trusted: every threshold of the validity rules, with its reason.

'Quiet' and 'neighbour' are what a virtual machine with 2 cores showed when its step loop was alone, and with one other
process that never sleeps. Thresholds of warm-up and of throttling stand in steady.py and soak.py, where they are also
used for more than a verdict; the margin above a physical limit stands in verdict.py.
"""

from __future__ import annotations

from rigdyno.schema.spec import ROWS_FOR_A_VERDICT

# The meter goes on until it has as many, if it may.
FEW_ROWS = ROWS_FOR_A_VERDICT

# Seconds from the first steady row to the last. The sampler reads twice a second: in a shorter time it can't have seen
# what the machine did, and a neighbour's burst lasts longer than that.
LEAST_SECONDS = 0.5

# Rows that depend on each other: thirty may be worth four, and an interval made of them claims too much. Of simulated
# streams of independent rows, none of 30 and none of 20 was called worth fewer than five, but 14 % of those of ten
# were: below twenty rows correlation can't be told from chance.
FEW_INDEPENDENT = 5.0
CORRELATION_ROWS = 20

# Half-width of the throughput's 95 % interval, as a share of it. With a quarter, half as fast again is hardly to be
# told from the same. Beside other load that kept both cores busy, streams of 2 to 4 s had 0.25 to 1.
IMPRECISE = 0.25

# How far the phases of a step may add up to another time than the step's own: a few calls lie between them.
UNEXPLAINED = 0.02

# A trend within the steady window that moves the step time by more than processes of the same code differ (1.5 %),
# twice over. From a tenth on the stream counts as never settled.
DRIFT_CHANGE = 0.03

# Core time that other tenants took while our threads stood in the run queue. Quiet: 0.012 to 0.017 of a core for 1- and
# 2-thread steps. A neighbour: 0.38 to 0.76. A tenth of one of two cores costs 5 %, which is more than most differences
# that are looked for; from a quarter on, the figure is the neighbour's as much as ours.
PUSHED_ASIDE_SUSPECT = 0.05
PUSHED_ASIDE_INVALID = 0.25

# PSI counts all waiting for a core on the machine, also that of our threads for each other. Quiet: 0.01 for 2 threads
# on 2 cores, but 0.23 for two pools of threads that take turns, and 0.56 for 4 threads on 2 cores. A neighbour: 0.50.
# It can't tell whose fault it is: it counts only where the run queue can't be read, and never condemns.
PRESSURE_SUSPECT = 0.40

# How often per second a core was taken from the worker's threads. Nearly quiet: 53 for 2 threads on 2 cores. A
# neighbour on each core: 183 to 257. More threads than cores do it to each other: it counts only where the run queue
# can't be read.
SWITCHES_SUSPECT = 120.0

# Core time during which the quota of the worker's own control group was used up. Without a quota: 0. As much as other
# tenants may take before it is said. A quota that always holds is no fault, so it never condemns; one that began to
# bite halfway shows as a fall of the rate (soak.py).
QUOTA_SUSPECT = 0.05

# Share of the time during which some task waited for memory: reclaiming, or fetching pages again that had been taken
# away. Quiet: 0.000. A worker whose control group held half of the file that its steps read: 0.20.
MEMORY_PRESSURE_SUSPECT = 0.02
MEMORY_PRESSURE_INVALID = 0.20

# Pages per second that the worker fetched from a disk, its swap included. Quiet: 0 once all is loaded. That worker:
# 150. At 0.1 to 1 ms each, ten are up to a hundredth of the time. Reading a mapped file for the first time costs such
# faults too, without any shortage: by themselves they count only where the kernel doesn't tell of pressure.
MAJOR_FAULTS_SUSPECT = 10.0

# Nobody is stopped by chance, so every reading of it is said. Some tenths of a second in ten move a figure by a few
# percent, which the steps before and after outweigh; from a tenth of the time on they don't.
STOPPED_INVALID = 0.10

# Time of the rows during which the clocks parted. Rows are written twice a second, so a clock that was set once costs
# 5 % of a run of ten seconds; a quarter is more than the rest of the stream can make good.
CLOCK_JUMPED_INVALID = 0.25

# Time that the hypervisor gave to other guests. Quiet: up to 0.02; at 0.056 short steps already took twice as long.
STEAL_SUSPECT = 0.04
STEAL_INVALID = 0.20

# Between medians of eighths of the window. Clocks of idle cores and turbo steps wander by a few percent by themselves.
CLOCK_CHANGE = 0.10
CLOCK_PARTS = 8

# Share by which a card's energy counter and the integral of its power may differ: sensors are good for 5 %, cards that
# sample a quarter of the time were off by 40 %.
METERS_DISAGREE = 0.10

# Readings in which a card says that it lowered its clock for heat or its supply. One in a while moves no figure.
CARD_THROTTLED = 0.10

# The sampler reads twice a second; on a full machine a reading may be late by some tenths of a second.
SAMPLER_GAP_SECONDS = 2.0
