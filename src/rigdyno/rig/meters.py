"""Which meters can be read here, found by reading them."""

from __future__ import annotations

import math
import os

from rigdyno.clock import Clock
from rigdyno.contracts import Probe, Unavailable
from rigdyno.schema.diagnosis import MeterState
from rigdyno.threads import Worker, trouble_of

PATIENCE_SECONDS = 5.0  # with one that hangs
LOOK_SECONDS = 0.1  # several ticks of the kernel's counters: a share of no time is unreadable everywhere


def check_meter(name: str, probe: Probe, clock: Clock) -> MeterState:
    """A probe that hangs or throws is a finding about itself, and the others are still looked at."""
    summary = (probe.__doc__ or "").strip().partition("\n")[0]
    worker = Worker(f"probe {name}")
    worker.ask(lambda: probe.availability() or _values(probe, clock))
    answer = worker.answer(PATIENCE_SECONDS)
    trouble = trouble_of(answer, PATIENCE_SECONDS)
    if answer is None or trouble is not None:
        return MeterState(name=name, summary=summary, reason=trouble)
    if isinstance(answer.value, Unavailable):
        return MeterState(name=name, summary=summary, reason=answer.value.reason, fix=answer.value.fix)
    values: dict[str, float] = answer.value
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
