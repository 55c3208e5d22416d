"""Real step streams of this machine, recorded by `rigdyno run` in fresh processes, and steady pieces of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import _steps
import numpy as np
from numpy.typing import NDArray

import rigdyno
from rigdyno.analyse.process import CellData, analyse_process
from rigdyno.analyse.streams import measured_from, step_durations
from rigdyno.store.folder import StoredCell

Floats = NDArray[np.float64]

# A piece counts as steady, independently of the rule under test, if the medians of its eighths are within 5 %.
PARTS = 8
LEVEL_SPREAD = 0.05
DRAWS = 50  # before a recording counts as having no steady piece of a length

START_SECONDS = 3.0  # what the plan sets aside for a process to start


@dataclass
class Recording:
    kind: str
    seconds: Floats  # of the steps behind the meter's own warm-up
    disturbed: bool  # other tenants were so loud that a figure of it would be INVALID
    drawn: int = 0
    steady: int = 0

    def steady_piece(self, length: int, draw: np.random.Generator) -> Floats | None:
        """Return consecutive steps, scaled to one, in their original order, which preserves their correlation."""
        if self.disturbed or len(self.seconds) < length:
            return None
        for _ in range(DRAWS):
            begin = draw.integers(0, len(self.seconds) - length + 1)
            piece = self.seconds[begin : begin + length]
            self.drawn += 1
            if is_steady(piece):
                self.steady += 1
                return piece / np.median(piece)
        return None

    def line(self) -> str:
        spread = np.percentile(self.seconds, [5, 95]) / np.median(self.seconds) - 1
        found = (
            f"{self.steady / self.drawn:>8.0%}" if self.drawn else "  other tenants" if self.disturbed else "    none"
        )
        step = f"{1000 * np.median(self.seconds):>8.3f} ms"
        return f"{self.kind:<10} {step} {len(self.seconds):>7} {spread[0]:>+8.1%} {spread[1]:>+8.1%} {found}"


def is_steady(piece: Floats) -> bool:
    levels = [float(np.median(part)) for part in np.array_split(piece, PARTS)]
    return max(levels) <= (1 + LEVEL_SPREAD) * min(levels)


def recorded(folder: str, seconds: float, repeat: int) -> list[Recording]:
    """Record with one thread each, to see the noise of the machine and not that of threads waiting for each other."""
    found = []
    for kind in _steps.KINDS:
        name = kind.__name__
        target = f"{Path(_steps.__file__).resolve()}:{name}"
        budget = repeat * (START_SECONDS + seconds)
        run = rigdyno.run(target, budget=budget, device="cpu", threads=1, repeat=repeat, out=folder)
        found += [_recording(name, cell) for cell in run.cells]
    return found


def _recording(kind: str, cell: StoredCell) -> Recording:
    _, rows = cell.steps()[0]
    findings = analyse_process(CellData(cell.record, cell.steps(), cell.telemetry())).findings
    disturbed = any(found.code == "other_tenants" and found.severity == "INVALID" for found in findings)
    return Recording(kind, step_durations(rows[measured_from(rows) :]), disturbed)
