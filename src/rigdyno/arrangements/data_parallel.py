"""One process, several devices: the model is replicated before every forward pass, and the batch is shared out.

What the published table of one node was measured with. Everything goes out from the first device and comes back to it:
inputs (scatter), all parameters (broadcast), outputs (gather), gradients (in the backward pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rigdyno.arrangements import _loops
from rigdyno.contracts import CannotRun, Collective, Job, Mark, Place, Requirement, Training, Update, Workload, World
from rigdyno.schema.participant import RANK
from rigdyno.schema.record import Quality
from rigdyno.schema.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """One process that shares each batch out to several devices (PyTorch DataParallel)"""

    launcher: ClassVar[str] = "process"
    world: ClassVar[World] = "devices"
    framework: ClassVar[str] = "torch"
    roles: ClassVar[tuple[str, ...]] = (RANK,)
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    def refuses(self, workload: Workload, update: Update, spec: RunSpec) -> str | None:
        what = "the arrangement 'data_parallel' is"
        if not workload.trains:
            return f"{what} for training, and this workload trains nothing; try --arrangement {workload.arrangement}"
        if spec.update != "plain":
            return f"{what} for the update 'plain', not for '{spec.update}'; try --arrangement single"
        if spec.nodes > 1:
            return f"{what} one process, and there are {spec.nodes} nodes; try --arrangement ddp"
        kind, _, number = spec.device.partition(":")
        if kind != "cuda":  # of XPU, torch._C has neither _scatter nor _broadcast_coalesced; there is one MPS at most
            return f"{what} for devices of CUDA or ROCm, and the device is {spec.device}; try --arrangement ddp"
        if number:
            return f"{what} for several devices, counted from the first; try --device {kind}"
        if spec.world_size < 2:
            return f"{what} for two devices or more, and this is one; try --arrangement single"
        return None

    def run(self, job: Job) -> Quality:
        alone: Collective = _loops.Alone()
        built = job.workload.build(replace(job.place, device=job.place.all_devices[0]))
        if not isinstance(built, Training):
            raise CannotRun("it trains nothing that could be shared out")
        training = _shared(built, job.place, job.start_phases(built))
        train_step = job.update.prepare(training, job.place, alone)
        return _loops.train(training, train_step, job.start_meter(training, alone))


def _torch() -> Any:
    import torch

    return torch


def _shared(training: Training, place: Place, mark: Mark) -> Training:
    _require_replicable(training.model)
    sent = sum(tensor.numel() * tensor.element_size() for tensor in training.model.state_dict().values())
    return replace(
        training,
        model=_replicated(training.model, place.all_devices, mark),
        batches=_joined(training.batches, place.devices),
        mark=mark,
        settled={**training.settled, "replicated_bytes": sent * (place.devices - 1)},
        notes=(*training.notes, f"a step takes a batch for each of {place.devices} devices, joined on the first one"),
    )


def _require_replicable(model: Any) -> None:
    """A replica is a copy of the module's attributes: a method that was put there still belongs to the first device."""
    for module in model.modules():
        if "forward" in vars(module) or getattr(module, "_compiled_call_impl", None) is not None:
            raise CannotRun(
                "the model's forward pass was replaced, by autocast or by compiling, and replicas would still call the "
                "one of the first device; try fp32 and no compiling, or --arrangement ddp"
            )


def _joined(batches: Iterator[tuple[Any, Any]], devices: int) -> Iterator[tuple[Any, Any]]:
    """A batch of a workload is meant for one device."""
    cat = _torch().cat
    while True:
        inputs, targets = zip(*(next(batches) for _ in range(devices)), strict=True)
        yield cat(inputs), cat(targets)


def _replicated(model: Any, devices: tuple[str, ...], mark: Mark) -> Any:
    """Its forward pass is these four, one after the other, each ended by its mark in the first device's queue."""

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
            _let_first_wait(devices)
            mark("forward")
            return outputs

        def gather(self, *arguments: Any) -> Any:
            output = super().gather(*arguments)
            mark("gather")
            return output

    return Replicated(model, device_ids=list(range(len(devices))))


def _let_first_wait(devices: tuple[str, ...]) -> None:
    """For the others' forward passes, in its queue, which it would do a moment later to gather their outputs: else that
    time would count as the gathering's."""
    torch = _torch()
    first, *others = devices
    for device in others:
        done = torch.Event(device)
        done.record(torch.accelerator.current_stream(device))
        torch.accelerator.current_stream(first).wait_event(done)
