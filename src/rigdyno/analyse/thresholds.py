"""From where on a figure isn't to be trusted: every threshold of the validity rules, with its reason.

'Quiet' and 'neighbour' are what a virtual machine with 2 cores showed when its step loop was alone, and with one other
process that never sleeps. Thresholds of warm-up and of throttling stand in steady.py and soak.py, where they are also
used for more than a verdict; the margin above a physical limit stands in verdict.py.
"""

from __future__ import annotations

# The order-statistic interval of a median needs 6 values for 95 %; ten leave room for a hiccup or two among them.
FEW_ROWS = 10

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

# Time that the hypervisor gave to other guests. Quiet: up to 0.02; at 0.056 short steps already took twice as long.
STEAL_SUSPECT = 0.04
STEAL_INVALID = 0.20

# Between medians of eighths of the window. Clocks of idle cores and turbo steps wander by a few percent by themselves.
CLOCK_CHANGE = 0.10
CLOCK_PARTS = 8

# The sampler reads ten times a second; on a full machine a reading may be late by some tenths of a second.
SAMPLER_GAP_SECONDS = 2.0
