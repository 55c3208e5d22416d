"""Ordinary training: the baseline that every other update is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import ANY_FRAMEWORK, Collective, Place, Requirement, Training, TrainStep, Workload
from rigdyno.updates._plain_tensorflow import tensorflow_step

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The ordinary gradient step of the optimizer."""

    framework: ClassVar[str] = ANY_FRAMEWORK
    requires: ClassVar[tuple[Requirement, ...]] = ()  # the workload's own framework is all that it needs
    private: ClassVar[bool] = False

    def refuses(self, workload: Workload) -> str | None:
        if not workload.trains or workload.framework in (ANY_FRAMEWORK, *_STEPS):
            return None
        known = " and ".join(_STEPS)
        return (
            f"the update 'plain' is for {known}, and this workload is for {workload.framework}; "
            f"no update for {workload.framework} is installed; docs/adding.md tells how to add one"
        )

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
        return _STEPS[training.framework](training, place, collective)


def _torch_step(training: Training, place: Place, collective: Collective) -> TrainStep:
    model, loss_of, mark = training.model, training.loss, training.mark
    parameters = list(model.parameters())
    optimizer = training.optimizer(parameters)
    model.train()
    scaler = training.scaler
    apply = optimizer.step if scaler is None else partial(_scaled_step, scaler, optimizer)

    def step(inputs: Any, targets: Any) -> Any:
        loss = loss_of(model(inputs), targets)
        mark("forward")
        (loss if scaler is None else scaler.scale(loss)).backward()
        mark("backward")
        if place.world_size > 1:
            _average(parameters, place.world_size, collective)
            mark("communication")
        apply()
        optimizer.zero_grad(set_to_none=True)
        mark("optimizer")
        return loss.detach()

    return step


_STEPS = {"torch": _torch_step, "tensorflow": tensorflow_step}


def _scaled_step(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Leaves out a step whose gradients overflowed, and then scales by less."""
    scaler.step(optimizer)
    scaler.update()


def _average(parameters: Sequence[torch.nn.Parameter], world_size: int, collective: Collective) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    collective.sum(gradients)
    for gradient in gradients:
        gradient.div_(world_size)
