"""Define each metric once, so that tables, comparisons and exports need not know its unit or which way is better."""

from __future__ import annotations

from typing import Literal

import msgspec

from rigdyno.base.units import rate_unit

Across = Literal["sum", "mean", "max", "each"]  # each: the same for every rank


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str | None  # None: every figure has its own, e.g. image/s or B/s; "share": 0.5 is 50 %
    better: Literal["higher", "lower"] | None = None  # None: neither
    across: Across | None = None  # how the figures of ranks are combined; None: one figure for all ranks

    def of(self, item: str) -> Metric:
        """Return this metric as a rate of such items."""
        return self.in_unit(rate_unit(item))

    def in_unit(self, unit: str) -> Metric:
        return msgspec.structs.replace(self, unit=unit)


THROUGHPUT = Metric(name="throughput", unit=None, better="higher", across="sum")

BANDWIDTH = Metric(name="bandwidth", unit="B/s", better="higher", across="sum")

STEP_RATE = Metric(name="step rate", unit="step/s", better="higher", across="each")

STEP_TIME = Metric(name="step time", unit="s", better="lower", across="max")  # ranks wait for the slowest

PHASE_TIME = Metric(name="phase time", unit="s", better="lower", across="mean")

LAUNCH_TIME = Metric(name="launch time", unit="s/launch", better="lower", across="max")

TRANSFER_TIME = Metric(name="all-reduce time", unit="s", better="lower", across="max")

PEAK_MEMORY = Metric(name="peak memory", unit="B", better="lower", across="sum")

DEVICE_MEMORY = Metric(name="peak memory of a device", unit="B", better="lower", across="max")

SPEEDUP = Metric(name="speedup", unit="x", better="higher")

EFFICIENCY = Metric(name="efficiency", unit="share", better="higher")

LIMIT_SHARE = Metric(name="share of the limit", unit="share", better="higher")

KEPT_SHARE = Metric(name="share of the burst that is kept", unit="share", better="higher")

RATE_CHANGE = Metric(name="change of throughput", unit="%", better="higher")

RATE_RATIO = Metric(name="ratio of throughputs", unit="x", better="higher")

JOB_TIME = Metric(name="time of a job", unit="s", better="lower")

JOB_ENERGY = Metric(name="energy of a job", unit="kWh", better="lower")

ITERATION_RATE = Metric(name="iterations a minute", unit="it/min", better="higher")

PATCH_RATE = Metric(name="patches a minute", unit="patch/min", better="higher")

DATA_WAIT = Metric(name="share of the step that waits for data", unit="share", better="lower")

JOB_PRICE = Metric(name="price of a job", unit="", better="lower")

ENERGY_PER_ITEM = Metric(name="energy per item", unit=None, better="lower")

ENERGY_CHANGE = Metric(name="change of energy per item", unit="%", better="lower")

ENERGY_RATIO = Metric(name="ratio of energies per item", unit="x", better="lower")

POWER = Metric(name="power", unit="W", better="lower")

COVERAGE = Metric(name="share of the time that the meter covered", unit="share", better="higher")

COUNT = Metric(name="count", unit="")

JOB_JOULES = Metric(name="energy of the steps of a job", unit="J", better="lower")

USAGE = Metric(name="usage", unit="share")

LOSS = Metric(name="loss", unit="", better="lower")

ACCURACY = Metric(name="accuracy", unit="share", better="higher")

EPOCH_TIME = Metric(name="time of an epoch", unit="s", better="lower")

EPOCH_ENERGY = Metric(name="energy of an epoch", unit="J", better="lower")

TIME_RATIO = Metric(name="time over the fastest plain training's", unit="x", better="lower")

EPSILON = Metric(name="epsilon", unit="", better="lower")

BURSTINESS = Metric(name="burstiness", unit="")
