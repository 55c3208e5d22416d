"""Ordinary training, in PyTorch or TensorFlow: the baseline of every other update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import ANY_FRAMEWORK, Collective, Requirement, Training, TrainStep, Update, WorkerPlace, Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Plain(Update):
    """The ordinary gradient step of the optimizer."""

    framework: ClassVar[str] = ANY_FRAMEWORK
    requires: ClassVar[tuple[Requirement, ...]] = ()  # needs nothing but the workload's framework

    def refuses(self, workload: Workload) -> str | None:
        if not workload.trains or workload.framework in (ANY_FRAMEWORK, *_STEPS):
            return None
        known = " and ".join(_STEPS)
        return (
            f"the update 'plain' is for {known}, and this workload is for {workload.framework}; "
            f"no update for {workload.framework} is installed; docs/adding.md explains how to add one"
        )

    def prepare(self, training: Training, place: WorkerPlace, collective: Collective) -> TrainStep:
        return _STEPS[training.framework](training, place, collective)


def _make_torch_step(training: Training, place: WorkerPlace, collective: Collective) -> TrainStep:
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
    """Skip the step if its gradients overflowed, and then reduce the scale."""
    scaler.step(optimizer)
    scaler.update()


def _average(parameters: Sequence[torch.nn.Parameter], world_size: int, collective: Collective) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    collective.sum(gradients)
    for gradient in gradients:
        gradient.div_(world_size)


def _make_tensorflow_step(training: Training, place: WorkerPlace, collective: Collective) -> TrainStep:
    """Return a step whose forward and backward pass are one graph, and so one phase: the backward pass."""
    import tensorflow as tf

    model, loss_of, mark = training.model, training.loss, training.mark
    variables = list(model.trainable_variables)
    optimizer = training.optimizer(variables)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def gradients_of(inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = loss_of(model(inputs), targets)
        return loss, tape.gradient(loss, variables)

    @tf.function  # type: ignore[untyped-decorator]
    def apply(gradients: list[Any]) -> None:
        optimizer.apply([gradient / place.world_size for gradient in gradients])

    def step(inputs: Any, targets: Any) -> Any:
        loss, gradients = gradients_of(inputs, targets)
        mark("backward")
        if place.world_size > 1:
            collective.sum(gradients)
            mark("communication")
        apply(gradients)
        mark("optimizer")
        return loss

    return step


_STEPS = {"torch": _make_torch_step, "tensorflow": _make_tensorflow_step}
