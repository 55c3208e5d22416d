"""What the workloads on TensorFlow share: optimizers whose arithmetic is PyTorch's, on variables of any kind.

Keras' own optimizers refuse the mirrored variables of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rigdyno.contracts import card_of

IMPORT_SECONDS = 5.0
IMPORT_BYTES = 600_000_000  # of a process that has imported it and computed something


def placed(device: str) -> Any:
    """What is made inside lies on this device. A rank that sees its own card alone knows it as the first."""
    import tensorflow as tf

    card = card_of(device)
    if card is None:
        return tf.device("CPU:0")
    return tf.device(f"GPU:{card if card < len(tf.config.list_logical_devices('GPU')) else 0}")


class Momentum:
    """Stochastic gradient descent with momentum, as in torch.optim.SGD."""

    def __init__(self, variables: Sequence[Any], learning_rate: float, momentum: float) -> None:
        self._variables, self._rate, self._momentum = list(variables), learning_rate, momentum
        self._velocities = [_zeros_like(variable) for variable in self._variables]

    def apply(self, gradients: Sequence[Any]) -> None:
        for variable, velocity, gradient in zip(self._variables, self._velocities, gradients, strict=True):
            moved = self._momentum * velocity + gradient
            velocity.assign(moved)
            variable.assign_sub(self._rate * moved)


class Adam:
    """Adam, with the constants of tf.keras.optimizers.Adam."""

    FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-7

    def __init__(self, variables: Sequence[Any], learning_rate: float) -> None:
        import tensorflow as tf

        self._variables, self._rate = list(variables), learning_rate
        self._means = [_zeros_like(variable) for variable in self._variables]
        self._squares = [_zeros_like(variable) for variable in self._variables]
        self._steps = tf.Variable(0.0, trainable=False)

    def apply(self, gradients: Sequence[Any]) -> None:
        import tensorflow as tf

        steps = self._steps + 1.0
        self._steps.assign(steps)
        rate = self._rate * tf.sqrt(1.0 - tf.pow(self.SECOND, steps)) / (1.0 - tf.pow(self.FIRST, steps))
        every = zip(self._variables, self._means, self._squares, gradients, strict=True)
        for variable, mean, square, gradient in every:
            first = self.FIRST * mean + (1.0 - self.FIRST) * gradient
            second = self.SECOND * square + (1.0 - self.SECOND) * tf.square(gradient)
            mean.assign(first)
            square.assign(second)
            variable.assign_sub(rate * first / (tf.sqrt(second) + self.EPSILON))


def _zeros_like(variable: Any) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
