"""From the network's floats to what is stored."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from rigdyno.engines.blockwise.backends import Floats
from rigdyno.engines.blockwise.errors import BadSetting
from rigdyno.engines.blockwise.ports import Array

TYPES = ("uint8", "float16")


@dataclass
class Encoding:
    """uint8: `low` is stored as 0 and `high` as 255. What lay outside is clipped, what is no number becomes 0.

    float16: keeps what is no number. All such is counted.
    """

    dtype: str
    low: float = 0.0
    high: float = 1.0
    clipped: int = field(default=0, init=False)
    not_numbers: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise BadSetting(f"no output type named '{self.dtype}'; there are {', '.join(TYPES)}")
        if not (self.low < self.high and np.isfinite([self.low, self.high, self.high - self.low]).all()):
            raise BadSetting(f"the output's range must go up, not from {self.low:g} to {self.high:g}")

    def encode(self, values: Floats) -> Array:
        return self._halves(values) if self.dtype == "float16" else self._bytes(values)

    def _halves(self, values: Floats) -> Array:
        largest = float(np.finfo(np.float16).max)
        self._count(int((np.abs(values) > largest).sum()), int(np.isnan(values).sum()))
        halves: Array = np.clip(values, -largest, largest).astype(np.float16)
        return halves

    def _bytes(self, values: Floats) -> Array:
        scaled = (values - np.float32(self.low)) * np.float32(255.0 / (self.high - self.low))
        nan = np.isnan(scaled)
        self._count(int(((scaled < -0.5) | (scaled > 255.5)).sum()), int(nan.sum()))
        np.rint(scaled, out=scaled)
        np.clip(scaled, 0.0, 255.0, out=scaled)
        scaled[nan] = 0.0  # as an integer it could become anything
        stored: Array = scaled.astype(np.uint8)
        return stored

    def _count(self, clipped: int, not_numbers: int) -> None:
        with self._lock:
            self.clipped += clipped
            self.not_numbers += not_numbers
