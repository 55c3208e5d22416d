"""PyTorch DDP: every rank has the whole model and its own batches; gradients are averaged during the backward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.arrangements.common import loops
from rigdyno.contracts import (
    Arrangement,
    CannotRun,
    Mark,
    Training,
    TrainingJob,
    Update,
    WorkerPlace,
    Workload,
    World,
)
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}

PATIENCE = timedelta(seconds=120)  # timeout of one exchange: a lost rank must not make all others hang


@dataclass(frozen=True, kw_only=True)
class Ddp(Arrangement):
    """Several ranks that average their gradients (PyTorch DDP)."""

    launcher: ClassVar[str] = "torchrun"
    world: ClassVar[World] = "ranks"

    broadcast_buffers: bool = True  # PyTorch's default: send rank 0's running statistics before every forward pass

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        if update.private:
            return (
                "the arrangement 'ddp' averages gradients over the ranks before a private update could clip "
                "per-sample gradients; try one process: leave out --ranks and --arrangement"
            )
        return None

    def run(self, job: TrainingJob) -> Quality:
        ranks = join(job.place)
        job.afterwards(ranks.leave)
        built = job.workload.build(job.place)
        if not isinstance(built, Training):
            loops.refuse_other_updates(job.update)
            return loops.repeat(built, job.start_meter(built, ranks))
        training = self._distribute(built, job.place, job.start_phases(built))
        # The update sees one rank, because its gradients are averaged already.
        train_step = job.update.prepare(training, replace(job.place, world_size=1), ranks)
        return loops.train(training, train_step, job.start_meter(training, ranks))

    def _distribute(self, training: Training, place: WorkerPlace, mark: Mark) -> Training:
        from torch.nn.parallel import DistributedDataParallel

        device_ids = None if place.device == "cpu" else [place.device]
        training.model.register_forward_pre_hook(lambda *_: mark("broadcast"))
        # Newer versions warn if the argument only repeats the default.
        buffers: dict[str, Any] = {} if self.broadcast_buffers else {"broadcast_buffers": False}
        model = DistributedDataParallel(training.model, device_ids=device_ids, **buffers)
        _mark_last_bucket(model, mark)

        def mark_waiting(phase: str) -> None:
            """Mark the end of the backward pass as communication: computing ended when the last bucket was full."""
            mark("communication" if phase == "backward" else phase)

        sent = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        settled = {**training.settled, "gradient_bytes": sent}
        return replace(training, model=model, mark=mark_waiting, settled=settled)


def _mark_last_bucket(model: DistributedDataParallel, mark: Mark) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def hook(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            mark("backward")
        return allreduce_hook(group, bucket)

    hook.__annotations__.clear()  # torch checks them, and refuses annotations that are strings
    model.register_comm_hook(None, hook)


@dataclass(frozen=True)
class DdpRanks:
    """The collective of all ranks."""

    device: str

    def sum(self, tensors: list[Any]) -> None:
        from torch import distributed

        for tensor in tensors:
            distributed.all_reduce(tensor)

    def agree(self, number: int) -> int:
        import torch
        from torch import distributed

        largest = torch.tensor(number, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    def leave(self) -> None:
        """Leave together: a rank that leaves while others still communicate with it makes them abort."""
        from torch import distributed

        distributed.barrier()
        distributed.destroy_process_group()


def join(place: WorkerPlace) -> DdpRanks:
    """Join the process group; torchrun has set address and rank in the environment."""
    import torch

    kind = place.device.partition(":")[0]
    if kind not in _BACKENDS:
        raise CannotRun(f"PyTorch can't connect ranks on {kind}; try --device cpu")
    if kind != "cpu":
        torch.accelerator.set_device_index(place.device)
    torch.distributed.init_process_group(_BACKENDS[kind], timeout=PATIENCE)
    return DdpRanks(place.device)
