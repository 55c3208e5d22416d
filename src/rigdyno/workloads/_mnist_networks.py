"""The two networks of the published cluster benchmark, in TensorFlow: modules whose call takes images and whether it
trains, and gives the logarithms of the classes' probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf  # noqa: TID253  # imported by who builds one of them

from rigdyno.workloads import _mnist


class Network(tf.Module):  # type: ignore[misc]
    """Convolutions have kernels of height x width x inputs x outputs, dense layers of inputs x outputs."""

    def __init__(self, shapes: Sequence[Sequence[int]], seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.kernels, self.biases = [], []
        for shape in shapes:
            bound = 1 / math.sqrt(math.prod(shape[:-1]))  # what PyTorch begins with, kernels and biases alike
            self.kernels.append(_variable(random.uniform(-bound, bound, shape)))
            self.biases.append(_variable(random.uniform(-bound, bound, shape[-1:])))

    @property
    def parameters(self) -> list[Any]:
        """In the order of the layers, kernel and bias in turn."""
        return [each for pair in zip(self.kernels, self.biases, strict=True) for each in pair]

    def _convolved(self, maps: Any, layer: int) -> Any:
        return tf.nn.conv2d(maps, self.kernels[layer], strides=1, padding="VALID") + self.biases[layer]

    def _dense(self, rows: Any, layer: int) -> Any:
        return rows @ self.kernels[layer] + self.biases[layer]


class Shared(Network):
    """That of PyTorch's MNIST example, layer by layer the one of the workload `mnist_cnn`: 21,840 parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__([(5, 5, 1, 10), (5, 5, 10, 20), (320, 50), (50, _mnist.CLASSES)], seed)

    def __call__(self, images: Any, training: bool = True) -> Any:
        maps = tf.nn.relu(_pooled(self._convolved(images, 0)))
        maps = self._convolved(maps, 1)
        maps = tf.nn.relu(_pooled(_dropped_maps(maps, 0.5) if training else maps))
        rows = tf.nn.relu(self._dense(tf.reshape(maps, (-1, 320)), 2))
        return tf.nn.log_softmax(self._dense(tf.nn.dropout(rows, 0.5) if training else rows, 3))


class AsPublished(Network):
    """That of the published TensorFlow script: 1,199,882 parameters."""

    def __init__(self, seed: int) -> None:
        super().__init__([(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, _mnist.CLASSES)], seed)

    def __call__(self, images: Any, training: bool = True) -> Any:
        maps = tf.nn.relu(self._convolved(images, 0))
        maps = _pooled(tf.nn.relu(self._convolved(maps, 1)))
        rows = tf.reshape(tf.nn.dropout(maps, 0.25) if training else maps, (-1, 9216))
        rows = tf.nn.relu(self._dense(rows, 2))
        return tf.nn.log_softmax(self._dense(tf.nn.dropout(rows, 0.5) if training else rows, 3))


def _variable(values: Any) -> Any:
    return tf.Variable(tf.constant(values, tf.float32))


def _pooled(maps: Any) -> Any:
    return tf.nn.max_pool2d(maps, ksize=2, strides=2, padding="VALID")


def _dropped_maps(maps: Any, rate: float) -> Any:
    """Whole maps at a time, as torch.nn.Dropout2d does."""
    shape = tf.shape(maps)
    return tf.nn.dropout(maps, rate, noise_shape=(shape[0], 1, 1, shape[3]))
