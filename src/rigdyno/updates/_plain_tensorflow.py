"""The plain step in TensorFlow. Forward and backward pass are one graph, so they are one phase: the backward pass."""

from __future__ import annotations

from typing import Any

from rigdyno.contracts import Collective, Place, Training, TrainStep


def tensorflow_step(training: Training, place: Place, collective: Collective) -> TrainStep:
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
