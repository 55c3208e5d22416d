"""One process does all of the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rigdyno.arrangements import _loops
from rigdyno.contracts import Collective, Job, Requirement, Training, Update, Workload, World
from rigdyno.schema.participant import RANK
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Single:
    """One process, on one device."""

    launcher: ClassVar[str] = "process"
    world: ClassVar[World] = "one"
    framework: ClassVar[str] = "any"
    roles: ClassVar[tuple[str, ...]] = (RANK,)
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        return None if spec.world_size == 1 else f"the arrangement 'single' is for one process, not {spec.world_size}"

    def run(self, job: Job) -> Quality:
        alone: Collective = _loops.Alone()
        built = job.workload.build(job.place)
        if not isinstance(built, Training):
            _loops.refuse_other_updates(job.update)
            return _loops.repeat(built, job.start_meter(built, alone))
        training = replace(built, mark=job.start_phases(built))
        train_step = job.update.prepare(training, job.place, alone)
        return _loops.train(training, train_step, job.start_meter(training, alone))
