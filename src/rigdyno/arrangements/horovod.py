"""Every rank has the whole model and its own batches; gradients are averaged by Horovod, over Gloo.

The transport is what `horovodrun --gloo` or `--mpi` chooses, so each is an arrangement of its own: `horovod_mpi` is
this one over MPI. Nothing else is ever shown under these names: a rank checks what it was joined by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rigdyno.arrangements import _horovod, _loops
from rigdyno.contracts import ANY_FRAMEWORK, CannotRun, Job, Requirement, Training, Update, Workload, World
from rigdyno.schema.participant import RANK
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec

COMMAND = "make horovod"  # in Rigdyno's source tree: what builds it for the frameworks that are installed


@dataclass(frozen=True, kw_only=True)
class Horovod:
    """Several ranks that average their gradients (Horovod over Gloo), in PyTorch or TensorFlow"""

    launcher: ClassVar[str] = "horovodrun"
    world: ClassVar[World] = "ranks"
    framework: ClassVar[str] = ANY_FRAMEWORK
    frameworks: ClassVar[tuple[str, ...]] = tuple(_horovod.JOINED)
    roles: ClassVar[tuple[str, ...]] = (RANK,)
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("horovod", command=COMMAND),
        Requirement("cloudpickle", "horovod"),
        Requirement("yaml", "horovod"),
    )
    transport: ClassVar[Literal["gloo", "mpi"]] = "gloo"

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        what = f"the arrangement '{spec.arrangement}' is"
        if not workload.trains:
            return f"{what} for training, and this workload trains nothing; try --arrangement {workload.arrangement}"
        if update.private:
            return f"{what} for updates that aren't private; try --update plain"
        if spec.launcher == "process" or spec.world_size < 2:
            return f"{what} for two ranks or more; try --arrangement single"
        return None

    def run(self, job: Job) -> Quality:
        ranks = _horovod.join(job.workload.framework, job.place, self.transport)
        job.afterwards(ranks.leave)
        built = job.workload.build(job.place)
        if not isinstance(built, Training):
            raise CannotRun("it trains nothing that could be shared out")
        training = ranks.shared(built, job.start_phases(built))
        # Where Horovod's optimizer averages the gradients, this looks like one rank to the update.
        place = replace(job.place, world_size=1) if ranks.averages else job.place
        train_step = job.update.prepare(training, place, ranks)
        return _loops.train(training, train_step, job.start_meter(training, ranks))
