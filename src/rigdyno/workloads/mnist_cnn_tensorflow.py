"""Does the same as `mnist_cnn` in TensorFlow 2, with the same network, optimizer, batches and shares of the data.

The optimizers are written here: those of Keras refuse the mirrored variables of several workers. Their arithmetic is
that of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rigdyno.contracts import Options, Requirement, Samples, Training, WorkerPlace, Workload, card_of
from rigdyno.contracts.options import Factor, Natural, Share
from rigdyno.schema.system import System
from rigdyno.workloads.datasets import mnist
from rigdyno.workloads.datasets.labelled import ImageSet, epoch_orders, take_share

IMPORT_SECONDS = 5.0

IMPORT_BYTES = 600_000_000  # memory of a process that has imported TensorFlow and computed something

# Batch sizes and learning rates of mnist_cnn and of the published script.
BATCHES, RATES = {"same": 64, "as_published": 128}, {"same": 0.01, "as_published": 0.001}

_TEST_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class MnistCnnTensorflow(Workload):
    """Trains mnist_cnn's network in TensorFlow 2, or the published TensorFlow script's own."""

    unit: ClassVar[str] = "image"
    framework: ClassVar[str] = "tensorflow"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("tensorflow", "tensorflow"),
        Requirement("numpy"),
    )
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {"learning_rate": 0.1}

    # as_published: network, batch, optimizer and data of the published TensorFlow script, which differ from PyTorch's
    variant: Literal["same", "as_published"] = "same"
    batch_size: Natural = 0  # 0: the variant's default, 64 or 128
    learning_rate: Factor = 0.0  # 0: the variant's default, 0.01 or (Adam) 0.001
    rate_factor: Annotated[float, Meta(ge=0, lt=1000000.0)] = (
        1.0  # multiplies the learning rate, e.g. by the number of ranks
    )
    momentum: Share = 0.5
    data: str = ""  # as in mnist_cnn

    def refuses(self, system: System, device: str) -> str | None:
        return mnist.refusal(self.data)

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + mnist.memory_bytes(self._batch)

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0  # the images, and tracing the first step

    def step_seconds(self, device: str) -> float | None:
        return 0.4 if self._is_published else 0.05

    @property
    def _is_published(self) -> bool:
        return self.variant == "as_published"

    @property
    def _batch(self) -> int:
        return self.batch_size or BATCHES[self.variant]

    def build(self, place: WorkerPlace) -> Training:
        import tensorflow as tf

        from rigdyno.workloads.networks.mnist_tensorflow import MnistCnnNetwork, PublishedMnistNetwork

        source = mnist.open_dataset(self.data, place.seed)
        mine = source.train if self._is_published else take_share(source.train, place, self._batch)
        with tensorflow_device(place.device):
            # Every rank starts with the same parameters, but has its own dropout.
            model = (PublishedMnistNetwork if self._is_published else MnistCnnNetwork)(place.seed)
            tf.random.set_seed(place.seed + place.rank)
            images, labels = _make_tensors(mine)
            accuracy = None if self._is_published else _make_accuracy(model, _make_tensors(source.test))
        return Training(
            framework="tensorflow",
            model=model,
            loss=_loss,
            optimizer=self._optimizer,
            batches=_batches(images, labels, self._batch, place.seed + place.rank),
            samples=Samples(len(mine), self._batch, lambda chosen: _pick(images, labels, chosen)),
            accuracy=accuracy,
            settled={
                "parameters": mnist.count_parameters([each.shape for each in model.parameters]),
                "batch_size": self._batch,
            },
            notes=self._notes(source.notes),
        )

    def _optimizer(self, variables: Sequence[Any]) -> Momentum | Adam:
        rate = (self.learning_rate or RATES[self.variant]) * self.rate_factor
        return Adam(variables, rate) if self._is_published else Momentum(variables, rate, self.momentum)

    def _notes(self, data_notes: tuple[str, ...]) -> tuple[str, ...]:
        if not self._is_published:
            return data_notes
        return (*data_notes, "as published: every rank has all images, and nothing is evaluated")


def _loss(outputs: Any, targets: Any) -> Any:
    """Return the mean negative log-likelihood of the correct class."""
    import tensorflow as tf

    return -tf.reduce_mean(tf.gather(outputs, targets, batch_dims=1))


def _make_tensors(part: ImageSet) -> tuple[Any, Any]:
    """Return normalised images (count x 28 x 28 x 1) and labels as tensors of the current device."""
    import tensorflow as tf

    return tf.constant(mnist.normalise(part)[..., None]), tf.constant(part.labels, tf.int64)


def _batches(images: Any, labels: Any, size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches epoch after epoch, each in a new order, the same orders as in mnist_cnn."""
    for order in epoch_orders(len(labels), seed):
        for begin in range(0, len(order), size):
            yield _pick(images, labels, order[begin : begin + size])


def _pick(images: Any, labels: Any, chosen: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    numbers = tf.constant(chosen, tf.int64)
    return tf.gather(images, numbers), tf.gather(labels, numbers)


def _make_accuracy(model: Any, data: tuple[Any, Any]) -> Callable[[], float]:
    """Return a function that computes the share of test images that the model classifies correctly."""
    import tensorflow as tf

    images, labels = data

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def count_correct(batch: Any, targets: Any) -> Any:
        predicted = tf.argmax(model(batch, training=False), axis=1)
        return tf.reduce_sum(tf.cast(predicted == targets, tf.int64))

    def accuracy() -> float:
        parts = [slice(begin, begin + _TEST_BATCH) for begin in range(0, len(labels), _TEST_BATCH)]
        return sum(int(count_correct(images[part], labels[part])) for part in parts) / len(labels)

    return accuracy


def tensorflow_device(device: str) -> Any:
    """Return a context that places tensors on this device. A rank that sees only its own GPU knows it as GPU 0."""
    import tensorflow as tf

    number = card_of(device)
    if number is None:
        return tf.device("CPU:0")
    return tf.device(f"GPU:{number if number < len(tf.config.list_logical_devices('GPU')) else 0}")


class Momentum:
    """Stochastic gradient descent with momentum, as in torch.optim.SGD."""

    def __init__(self, variables: Sequence[Any], learning_rate: float, momentum: float) -> None:
        self._variables, self._rate, self._momentum = list(variables), learning_rate, momentum
        self._velocities = [_zeros_like(variable) for variable in self._variables]

    def apply(self, gradients: Sequence[Any]) -> None:
        for variable, velocity, gradient in zip(self._variables, self._velocities, gradients, strict=True):
            new_velocity = self._momentum * velocity + gradient
            velocity.assign(new_velocity)
            variable.assign_sub(self._rate * new_velocity)


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
        states = zip(self._variables, self._means, self._squares, gradients, strict=True)
        for variable, mean, square, gradient in states:
            first = self.FIRST * mean + (1.0 - self.FIRST) * gradient
            second = self.SECOND * square + (1.0 - self.SECOND) * tf.square(gradient)
            mean.assign(first)
            square.assign(second)
            variable.assign_sub(rate * first / (tf.sqrt(second) + self.EPSILON))


def _zeros_like(variable: Any) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
