"""What a card says of itself while it works: whether it was too hot, or its supply too weak, to keep its clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rigdyno.analyse.streams import Rows
from rigdyno.analyse.telemetry import Span, readings
from rigdyno.analyse.thresholds import CARD_THROTTLED
from rigdyno.analyse.verdict import Finding
from rigdyno.schema.samples import Header
from rigdyno.units import show_percent

# Bits of NVML's reasons for a lower clock. A cap on power (0x4) is how every card at full load lives, and no fault.
_REASONS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "a power brake"}


def throttled_cards(telemetry: Sequence[tuple[Header, Rows]], windows: Mapping[int, Span]) -> list[Finding]:
    """Of the steady window of each node. A card that other work heats can't keep its clock either."""
    for header, rows in telemetry:
        window = windows.get(header.participant.node)
        for title, reason, share in _throttled(header, rows, window) if window is not None else ():
            if share >= CARD_THROTTLED:
                sentence = f"throttled: {title} lowered its clock for {reason} in {show_percent(share)} of the readings"
                return [Finding("SUSPECT", "card_throttled", sentence)]
    return []


def _throttled(header: Header, rows: Rows, window: Span) -> Iterator[tuple[str, str, float]]:
    for channel in header.channels:
        found = readings(rows, channel.name, window) if channel.quantity == "throttle" else None
        if found is None:
            continue
        bits = found.values.astype(np.uint64)
        for reason in dict.fromkeys(_REASONS.values()):
            mask = np.uint64(sum(bit for bit, name in _REASONS.items() if name == reason))
            yield channel.title, reason, float(np.mean((bits & mask) != 0))
