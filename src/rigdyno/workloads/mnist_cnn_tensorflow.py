"""The job of `mnist_cnn` in TensorFlow 2: the same network, optimizer, batches and shares of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rigdyno.contracts import Options, Place, Requirement, Samples, Training
from rigdyno.schema.system import System
from rigdyno.workloads import _mnist
from rigdyno.workloads._labelled import Part, orders, share_of
from rigdyno.workloads._options import number_between, one_of, text, whole_number
from rigdyno.workloads._tensorflow import IMPORT_BYTES, IMPORT_SECONDS, Adam, Momentum, placed

# Batch and learning rate of mnist_cnn, and of the published script.
BATCHES, RATES = {"same": 64, "as_published": 128}, {"same": 0.01, "as_published": 0.001}
_TEST_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class MnistCnnTensorflow:
    """Trains mnist_cnn's network in TensorFlow 2, or the published TensorFlow script's own."""

    unit: ClassVar[str] = "image"
    framework: ClassVar[str] = "tensorflow"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("tensorflow", "tensorflow"),
        Requirement("numpy"),
    )
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {"learning_rate": 0.1}

    # as_published: network, batch, optimizer and data of the published TensorFlow script, which are not PyTorch's
    variant: Literal["same", "as_published"] = "same"
    batch_size: int = 0  # 0: the variant's own, 64 or 128
    learning_rate: float = 0.0  # 0: the variant's own, 0.01 or (Adam) 0.001
    rate_factor: float = 1.0  # times the learning rate, e.g. the number of ranks
    momentum: float = 0.5
    data: str = ""  # as in mnist_cnn

    def __post_init__(self) -> None:
        one_of("variant", self.variant, ("same", "as_published"))
        whole_number("batch_size", self.batch_size, least=0)
        number_between("learning_rate", self.learning_rate, 0, 1000)
        number_between("rate_factor", self.rate_factor, 0, 1e6)
        number_between("momentum", self.momentum, 0, 1)
        text("data", self.data)

    def refuses(self, system: System, device: str) -> str | None:
        return _mnist.refusal(self.data)

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + _mnist.memory_bytes(self._batch)

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

    def build(self, place: Place) -> Training:
        import tensorflow as tf

        from rigdyno.workloads._mnist_networks import AsPublished, Shared

        source = _mnist.opened(self.data, place.seed)
        mine = source.train if self._is_published else share_of(source.train, place, self._batch)
        with placed(place.device):
            # Every rank begins with the same parameters, but drops out on its own.
            model = (AsPublished if self._is_published else Shared)(place.seed)
            tf.random.set_seed(place.seed + place.rank)
            images, labels = _on_device(mine)
            tested = None if self._is_published else _accuracy(model, _on_device(source.test))
        return Training(
            framework="tensorflow",
            model=model,
            loss=_loss,
            optimizer=self._optimizer,
            batches=_batches(images, labels, self._batch, place.seed + place.rank),
            samples=Samples(len(mine), self._batch, lambda chosen: _picked(images, labels, chosen)),
            accuracy=tested,
            settled={
                "parameters": _mnist.count([each.shape for each in model.parameters]),
                "batch_size": self._batch,
            },
            notes=self._notes(source.notes),
        )

    def _optimizer(self, variables: Sequence[Any]) -> Momentum | Adam:
        rate = (self.learning_rate or RATES[self.variant]) * self.rate_factor
        return Adam(variables, rate) if self._is_published else Momentum(variables, rate, self.momentum)

    def _notes(self, of_data: tuple[str, ...]) -> tuple[str, ...]:
        if not self._is_published:
            return of_data
        return (*of_data, "as published: every rank has all images, and nothing is evaluated")


def _loss(outputs: Any, targets: Any) -> Any:
    """The negative logarithm of the right class' probability, mean over the images."""
    import tensorflow as tf

    return -tf.reduce_mean(tf.gather(outputs, targets, batch_dims=1))


def _on_device(part: Part) -> tuple[Any, Any]:
    """Normalised images (count x 28 x 28 x 1) and labels."""
    import tensorflow as tf

    return tf.constant(_mnist.normalised(part)[..., None]), tf.constant(part.labels, tf.int64)


def _batches(images: Any, labels: Any, size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Epoch after epoch, each in a new order, the same as mnist_cnn's."""
    for order in orders(len(labels), seed):
        for begin in range(0, len(order), size):
            yield _picked(images, labels, order[begin : begin + size])


def _picked(images: Any, labels: Any, chosen: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    numbers = tf.constant(chosen, tf.int64)
    return tf.gather(images, numbers), tf.gather(labels, numbers)


def _accuracy(model: Any, data: tuple[Any, Any]) -> Callable[[], float]:
    """The share of the test images that the model names rightly."""
    import tensorflow as tf

    images, labels = data

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def right(some: Any, their: Any) -> Any:
        named = tf.argmax(model(some, training=False), axis=1)
        return tf.reduce_sum(tf.cast(named == their, tf.int64))

    def accuracy() -> float:
        parts = [slice(begin, begin + _TEST_BATCH) for begin in range(0, len(labels), _TEST_BATCH)]
        return sum(int(right(images[part], labels[part])) for part in parts) / len(labels)

    return accuracy
