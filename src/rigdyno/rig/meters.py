"""Which meters can be read here, found by reading them."""

from __future__ import annotations

import math
import os

from rigdyno.clock import Clock
from rigdyno.contracts import Probe
from rigdyno.schema.diagnosis import MeterState

LOOK_SECONDS = 0.1  # several ticks of the kernel's counters: a share of no time is unreadable everywhere


def check_meter(name: str, probe: Probe, clock: Clock) -> MeterState:
    summary = (probe.__doc__ or "").strip().partition("\n")[0]
    unavailable = probe.availability()
    if unavailable is not None:
        return MeterState(name=name, summary=summary, reason=unavailable.reason, fix=unavailable.fix)
    values = _values(probe, clock)
    return MeterState(
        name=name,
        summary=summary,
        readable=tuple(channel for channel, value in values.items() if not math.isnan(value)),
        unreadable={channel: probe.hints.get(channel) for channel, value in values.items() if math.isnan(value)},
    )


def _values(probe: Probe, clock: Clock) -> dict[str, float]:
    channels = probe.open(lambda: [os.getpid()])
    try:
        clock.sleep(LOOK_SECONDS)
        return dict(zip([channel.name for channel in channels], probe.read(), strict=True))
    finally:
        probe.close()
