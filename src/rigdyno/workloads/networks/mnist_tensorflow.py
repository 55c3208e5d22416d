"""The two networks of the published cluster benchmark, in TensorFlow.

Calling one with images, and whether it is training, returns the log-probabilities of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf  # noqa: TID253  # imported only when a workload is built

from rigdyno.workloads.datasets import mnist


class MnistNetwork(tf.Module):  # type: ignore[misc]
    """Creates the parameters. Kernels are height x width x inputs x outputs, dense weights inputs x outputs."""

    def __init__(self, shapes: Sequence[Sequence[int]], seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.kernels, self.biases = [], []
        for shape in shapes:
            bound = 1 / math.sqrt(math.prod(shape[:-1]))  # PyTorch's default for kernels and biases
            self.kernels.append(_variable(random.uniform(-bound, bound, shape)))
            self.biases.append(_variable(random.uniform(-bound, bound, shape[-1:])))

    @property
    def parameters(self) -> list[Any]:
        """Return all parameters in the order of the layers, kernel before bias."""
        return [each for pair in zip(self.kernels, self.biases, strict=True) for each in pair]

    def _convolve(self, maps: Any, layer: int) -> Any:
        return tf.nn.conv2d(maps, self.kernels[layer], strides=1, padding="VALID") + self.biases[layer]

    def _dense(self, rows: Any, layer: int) -> Any:
        return rows @ self.kernels[layer] + self.biases[layer]


class MnistCnnNetwork(MnistNetwork):
    """The network of PyTorch's MNIST example, the same as in the workload `mnist_cnn`: 21,840 parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__([(5, 5, 1, 10), (5, 5, 10, 20), (320, 50), (50, mnist.CLASSES)], seed)

    def __call__(self, images: Any, training: bool = True) -> Any:
        maps = tf.nn.relu(_pool(self._convolve(images, 0)))
        maps = self._convolve(maps, 1)
        maps = tf.nn.relu(_pool(_drop_maps(maps, 0.5) if training else maps))
        rows = tf.nn.relu(self._dense(tf.reshape(maps, (-1, 320)), 2))
        return tf.nn.log_softmax(self._dense(tf.nn.dropout(rows, 0.5) if training else rows, 3))


class PublishedMnistNetwork(MnistNetwork):
    """The network of the published TensorFlow script: 1,199,882 parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__([(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, mnist.CLASSES)], seed)

    def __call__(self, images: Any, training: bool = True) -> Any:
        maps = tf.nn.relu(self._convolve(images, 0))
        maps = _pool(tf.nn.relu(self._convolve(maps, 1)))
        rows = tf.reshape(tf.nn.dropout(maps, 0.25) if training else maps, (-1, 9216))
        rows = tf.nn.relu(self._dense(rows, 2))
        return tf.nn.log_softmax(self._dense(tf.nn.dropout(rows, 0.5) if training else rows, 3))


def _variable(values: Any) -> Any:
    return tf.Variable(tf.constant(values, tf.float32))


def _pool(maps: Any) -> Any:
    return tf.nn.max_pool2d(maps, ksize=2, strides=2, padding="VALID")


def _drop_maps(maps: Any, rate: float) -> Any:
    """Drop whole maps, as torch.nn.Dropout2d does."""
    shape = tf.shape(maps)
    return tf.nn.dropout(maps, rate, noise_shape=(shape[0], 1, 1, shape[3]))
