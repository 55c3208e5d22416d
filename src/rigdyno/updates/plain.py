"""Ordinary training: the baseline that every other update is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import Collective, Place, Requirement, Training, TrainStep, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The ordinary gradient step of the optimizer."""

    framework: ClassVar[str] = "torch"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)

    def refuses(self, workload: Workload) -> str | None:
        return None

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
        model, loss_of, mark = training.model, training.loss, training.mark
        parameters = list(model.parameters())
        optimizer = training.optimizer(parameters)
        model.train()

        def step(inputs: Any, targets: Any) -> Any:
            loss = loss_of(model(inputs), targets)
            mark("forward")
            loss.backward()
            mark("backward")
            if place.world_size > 1:
                _average(parameters, place.world_size, collective)
                mark("communication")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            mark("optimizer")
            return loss.detach()

        return step


def _average(parameters: Sequence[torch.nn.Parameter], world_size: int, collective: Collective) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    collective.sum(gradients)
    for gradient in gradients:
        gradient.div_(world_size)
