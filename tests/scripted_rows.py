"""Make step rows and telemetry rows from a script, as a meter and a sampler would write them."""

import numpy as np
from hypothesis import settings

from rigdyno.schema.estimate import Estimate
from rigdyno.schema.samples import STEP_FIELDS, Header, telemetry_fields
from rigdyno.schema.spec import sampler_of
from support import a_rank

NS = 1_000_000_000
BEGIN_NS = 5 * NS

# Streams of random noise: the same ones every time, and however long they take.
repeatable = settings(derandomize=True, deadline=None)


def step_rows(seconds, *, items=1.0, steps=1, kind=0, warm_up=0, begin_ns=BEGIN_NS):
    """Return rows without gaps, one per entry of `seconds`; the first `warm_up` are flagged by the meter."""
    seconds = np.asarray(seconds, dtype=float)
    rows = np.zeros(len(seconds), dtype=np.dtype(list(STEP_FIELDS)))
    edges = begin_ns + np.concatenate(([0], np.cumsum(np.round(seconds * NS)))).astype("<i8")
    rows["start_ns"], rows["end_ns"] = edges[:-1], edges[1:]
    rows["items"], rows["steps"], rows["kind"] = items, steps, kind
    rows["flags"][:warm_up] = 1
    return rows


def step_header(*kinds, rank=0, node=0):
    return Header(fields=STEP_FIELDS, kinds=kinds or ("step",), participant=a_rank(rank, node))


def telemetry_header(node=0):
    return Header(fields=(), participant=sampler_of(node))


def telemetry_rows(rows, hertz=10.0, **channels):
    """Readings from a little before the rows to a little after; a channel is a number or a function of 0 to 1."""
    first, last = int(rows["start_ns"][0]), int(rows["end_ns"][-1])
    at = np.arange(first - NS // 5, last + NS // 5, int(NS / hertz), dtype="<i8")
    found = np.zeros(len(at), dtype=np.dtype(list(telemetry_fields(list(channels)))))
    found["at_ns"] = at
    share = np.clip((at - first) / (last - first), 0, 1)
    for name, value in channels.items():
        found[name] = value(share) if callable(value) else value
    return found


def noisy(count, seconds=0.01, spread=0.02, seed=0):
    return seconds * np.random.default_rng(seed).lognormal(0, spread, count)


def estimate(value, low=None, high=None, unit="item/s"):
    return Estimate(
        value=value,
        low=value if low is None else low,
        high=value if high is None else high,
        confidence=0.95,
        n=10,
        unit=unit,
        method="scripted",
    )
