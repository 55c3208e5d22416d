"""One process does all the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rigdyno.arrangements.common import loops
from rigdyno.contracts import Arrangement, Collective, Requirement, Training, TrainingJob, Update, Workload, World
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Single(Arrangement):
    """One process, on one device."""

    launcher: ClassVar[str] = "process"
    world: ClassVar[World] = "one"
    frameworks: ClassVar[tuple[str, ...]] = ("any",)
    requires: ClassVar[tuple[Requirement, ...]] = ()

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        return None if spec.world_size == 1 else f"the arrangement 'single' is for one process, not {spec.world_size}"

    def run(self, job: TrainingJob) -> Quality:
        alone: Collective = loops.SingleRank()
        built = job.workload.build(job.place)
        if not isinstance(built, Training):
            loops.refuse_other_updates(job.update)
            return loops.repeat(built, job.start_meter(built, alone))
        training = replace(built, mark=job.start_phases(built))
        train_step = job.update.prepare(training, job.place, alone)
        return loops.train(training, train_step, job.start_meter(training, alone))
