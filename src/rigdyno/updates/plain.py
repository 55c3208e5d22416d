"""Ordinary training: the baseline that every other update is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import Collective, Place, Requirement, Training, TrainStep, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The ordinary gradient step of the optimizer."""

    framework: ClassVar[str] = "torch"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    private: ClassVar[bool] = False

    def refuses(self, workload: Workload) -> str | None:
        return None

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
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


def _scaled_step(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Leaves out a step whose gradients overflowed, and then scales by less."""
    scaler.step(optimizer)
    scaler.update()


def _average(parameters: Sequence[torch.nn.Parameter], world_size: int, collective: Collective) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    collective.sum(gradients)
    for gradient in gradients:
        gradient.div_(world_size)
