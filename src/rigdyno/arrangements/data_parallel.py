"""One process with several devices: the model is replicated before every forward pass, and the batch is divided.

The published table of one node was measured this way. The first device sends inputs (scatter) and all parameters
(broadcast), and receives outputs (gather) and gradients (in the backward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rigdyno.arrangements.common import loops
from rigdyno.contracts import (
    Arrangement,
    CannotRun,
    Collective,
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


@dataclass(frozen=True, kw_only=True)
class DataParallel(Arrangement):
    """One process that divides each batch among several devices (PyTorch DataParallel)"""

    launcher: ClassVar[str] = "process"
    world: ClassVar[World] = "devices"

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        what = "the arrangement 'data_parallel' is"
        if not workload.trains:
            return f"{what} for training, and this workload trains nothing; try --arrangement {workload.arrangement}"
        if spec.update != "plain":
            return f"{what} for the update 'plain', not for '{spec.update}'; try --arrangement single"
        if spec.nodes > 1:
            return f"{what} one process, and there are {spec.nodes} nodes; try --arrangement ddp"
        kind, _, number = spec.device.partition(":")
        if kind != "cuda":  # torch._C has no _scatter and _broadcast_coalesced for XPU; MPS is never more than one
            return f"{what} for devices of CUDA or ROCm, and the device is {spec.device}; try --arrangement ddp"
        if number:
            return f"{what} for several devices, counted from the first; try --device {kind}"
        if spec.world_size < 2:
            return f"{what} for two devices or more, and this is one; try --arrangement single"
        return None

    def run(self, job: TrainingJob) -> Quality:
        alone: Collective = loops.SingleRank()
        built = job.workload.build(replace(job.place, device=job.place.all_devices[0]))
        if not isinstance(built, Training):
            raise CannotRun("this workload trains no model that could be distributed")
        training = _replicate_training(built, job.place, job.start_phases(built))
        train_step = job.update.prepare(training, job.place, alone)
        return loops.train(training, train_step, job.start_meter(training, alone))


def _torch() -> Any:
    import torch

    return torch


def _replicate_training(training: Training, place: WorkerPlace, mark: Mark) -> Training:
    _require_replicable(training.model)
    sent = sum(tensor.numel() * tensor.element_size() for tensor in training.model.state_dict().values())
    return replace(
        training,
        model=_replicate_model(training.model, place.all_devices, mark),
        batches=_join_batches(training.batches, place.devices),
        mark=mark,
        settled={**training.settled, "replicated_bytes": sent * (place.devices - 1)},
        notes=(*training.notes, f"a step takes a batch for each of {place.devices} devices, joined on the first one"),
    )


def _require_replicable(model: Any) -> None:
    """Refuse a model with a replaced forward method: a replica copies the module's attributes, and the copied method
    would still run on the first device."""
    for module in model.modules():
        if "forward" in vars(module) or getattr(module, "_compiled_call_impl", None) is not None:
            raise CannotRun(
                "the model's forward pass was replaced, by autocast or by compiling, and all replicas would call that "
                "of the first device; try fp32 and no compiling, or --arrangement ddp"
            )


def _join_batches(batches: Iterator[tuple[Any, Any]], devices: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches for all devices: a workload's batch is for one device."""
    cat = _torch().cat
    while True:
        inputs, targets = zip(*(next(batches) for _ in range(devices)), strict=True)
        yield cat(inputs), cat(targets)


def _replicate_model(model: Any, devices: tuple[str, ...], mark: Mark) -> Any:
    """Wrap the model in DataParallel. Its forward pass calls these four methods in order, and each ends with a mark in
    the first device's queue."""

    class Replicated(_torch().nn.DataParallel):  # type: ignore[misc]
        def scatter(self, *arguments: Any) -> Any:
            parts = super().scatter(*arguments)
            mark("scatter")
            return parts

        def replicate(self, *arguments: Any) -> Any:
            replicas = super().replicate(*arguments)
            mark("broadcast")
            return replicas

        def parallel_apply(self, *arguments: Any) -> Any:
            outputs = super().parallel_apply(*arguments)
            _make_first_wait(devices)
            mark("forward")
            return outputs

        def gather(self, *arguments: Any) -> Any:
            output = super().gather(*arguments)
            mark("gather")
            return output

    return Replicated(model, device_ids=list(range(len(devices))))


def _make_first_wait(devices: tuple[str, ...]) -> None:
    """Make the first device's queue wait for the forward passes of the other devices. It would do so a moment later to
    gather their outputs, and the time would count as gathering."""
    torch = _torch()
    first, *others = devices
    for device in others:
        done = torch.Event(device)
        done.record(torch.accelerator.current_stream(device))
        torch.accelerator.current_stream(first).wait_event(done)
