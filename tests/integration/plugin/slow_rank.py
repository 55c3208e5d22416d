"""A workload of an installed package: a small network whose data take long on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import Options, Place, Requirement, Training
from rigdyno.schema.system import System


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A small network, slow on one rank"""

    unit: ClassVar[str] = "sample"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {}
    slow: int = 11
    milliseconds: int = 150

    def refuses(self, system: System, device: str) -> str | None:
        return None

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int | None:
        return None

    def start_seconds(self) -> float:
        return 3.0

    def step_seconds(self, device: str) -> float | None:
        return None

    def build(self, place: Place) -> Training:
        import torch

        inputs, targets = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)

        def batches():
            while True:
                if place.rank == self.slow:
                    time.sleep(self.milliseconds / 1000)
                yield inputs, targets

        return Training(
            model=torch.nn.Linear(8, 3),
            loss=torch.nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            batches=batches(),
            phases=True,
        )
