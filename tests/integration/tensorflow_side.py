"""The TensorFlow part of the tests, in separate processes: `alone FOLDER`, or `rank N ENDPOINT,ENDPOINT FOLDER`.

Weights, images and gradients are exchanged as files, in PyTorch's layout. It never shares a process with torch."""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path

import numpy as np

RANKS, BATCH, STEPS = 2, 8, 3
RATE, MOMENTUM = 0.1, 0.5
MAPS = (4, 4, 20)  # input of the first dense layer: height, width, channels; PyTorch has channels first


def to_tensorflow(arrays):
    first, first_bias, second, second_bias, dense, dense_bias, last, last_bias = arrays
    height, width, channels = MAPS
    rows = dense.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(dense.shape)
    return [
        first.transpose(2, 3, 1, 0), first_bias, second.transpose(2, 3, 1, 0), second_bias,
        rows.T, dense_bias, last.T, last_bias,
    ]  # fmt: skip


def to_torch(arrays):
    first, first_bias, second, second_bias, dense, dense_bias, last, last_bias = arrays
    rows = dense.T.reshape(-1, *MAPS).transpose(0, 3, 1, 2).reshape(dense.T.shape)
    return [
        first.transpose(3, 2, 0, 1), first_bias, second.transpose(3, 2, 0, 1), second_bias,
        rows, dense_bias, last.T, last_bias,
    ]  # fmt: skip


class WithoutDropout:
    """The network without dropout, as an update sees it."""

    def __init__(self, network):
        self._network, self.trainable_variables = network, network.parameters

    def __call__(self, images):
        return self._network(images, training=False)


def load_inputs(folder):
    with np.load(folder / "given.npz") as file:
        weights = [file[f"w{number}"] for number in range(8)]
        return weights, file["images"].transpose(0, 2, 3, 1), file["labels"]


def save_arrays(path, **named):
    arrays = {
        f"{name}{number}": value
        for name, values in named.items()
        for number, value in enumerate(values if isinstance(values, list) else [values])
    }
    with path.open("wb") as file:
        np.savez(file, **arrays)


def make_network(weights):
    from rigdyno.workloads.networks.mnist_tensorflow import MnistCnnNetwork

    network = MnistCnnNetwork(seed=0)
    for variable, values in zip(network.parameters, to_tensorflow(weights), strict=True):
        variable.assign(values)
    return network


def train(network, batches, place, collective):
    """Return the parameters after these batches, in PyTorch's layout."""
    from rigdyno.contracts import Training
    from rigdyno.updates.plain import Plain
    from rigdyno.workloads.mnist_cnn_tensorflow import Momentum, _loss

    training = Training(
        framework="tensorflow",
        model=WithoutDropout(network),
        loss=_loss,
        optimizer=lambda variables: Momentum(variables, RATE, MOMENTUM),
        batches=iter(()),
    )
    step = Plain().prepare(training, place, collective)
    for images, labels in batches:
        step(images, labels)
    return to_torch([variable.numpy() for variable in network.parameters])


def make_batches(images, labels, rank=0, ranks=1):
    """Yield the share of one rank in every batch."""
    import tensorflow as tf

    each = BATCH // ranks
    for step in range(STEPS):
        begin = step * BATCH + rank * each
        yield tf.constant(images[begin : begin + each]), tf.constant(labels[begin : begin + each])


def run_alone(folder):
    from rigdyno.arrangements.common.loops import SingleRank
    from rigdyno.contracts import WorkerPlace
    from rigdyno.frameworks.tensorflow import TensorFlow

    TensorFlow().prepare(seed=3, threads=1)
    import tensorflow as tf

    weights, images, labels = load_inputs(folder)
    network = make_network(weights)
    with tf.GradientTape() as tape:
        outputs = network(tf.constant(images), training=False)
        from rigdyno.workloads.mnist_cnn_tensorflow import _loss

        loss = _loss(outputs, tf.constant(labels))
    gradients = [each.numpy() for each in tape.gradient(loss, network.parameters)]
    parameters = train(network, make_batches(images, labels), WorkerPlace(device="cpu"), SingleRank())
    save_arrays(
        folder / "alone.npz",
        outputs=outputs.numpy(), loss=loss.numpy(), gradient=to_torch(gradients), trained=parameters,
    )  # fmt: skip
    results = {**check_port(), **check_workload(), "torch": "torch" in sys.modules}
    (folder / "alone.json").write_text(json.dumps(results))


def check_port():
    import tensorflow as tf

    from rigdyno.frameworks.tensorflow import TensorFlow

    port = TensorFlow()
    drawn = []
    for seed in (5, 5, 6):
        tf.random.set_seed(seed)
        drawn.append(tf.random.uniform((3,)).numpy().tolist())
    return {
        "threads": port.threads(),
        "versions": port.versions(),
        "drawn": drawn,
        "out of memory": [
            port.is_out_of_memory(tf.errors.ResourceExhaustedError(None, None, "whatever it says")),
            port.is_out_of_memory(RuntimeError("OOM when allocating tensor with shape[9]")),
            port.is_out_of_memory(ValueError("no such file")),
        ],
    }


def check_workload():
    from rigdyno.arrangements.common.loops import SingleRank
    from rigdyno.contracts import WorkerPlace
    from rigdyno.updates.plain import Plain
    from rigdyno.workloads.datasets import mnist
    from rigdyno.workloads.mnist_cnn_tensorflow import MnistCnnTensorflow

    whole = mnist.make_synthetic_images
    mnist.make_synthetic_images = lambda seed: whole(seed, train=500, test=200)
    training = MnistCnnTensorflow(learning_rate=0.1).build(WorkerPlace(device="cpu"))
    step = Plain().prepare(training, WorkerPlace(device="cpu"), SingleRank())
    first = [labels.numpy().tolist() for _, labels in islice(training.batches, 8)]
    losses = [float(step(*batch)) for batch in islice(training.batches, 60)]
    published = MnistCnnTensorflow(variant="as_published").build(WorkerPlace(device="cpu", rank=1, world_size=2))
    their_step = Plain().prepare(published, WorkerPlace(device="cpu"), SingleRank())
    return {
        "labels": first,
        "losses": losses,
        "accuracy": training.accuracy(),
        "parameters": [training.settled["parameters"], published.settled["parameters"]],
        "published": [len(next(published.batches)[1]), published.samples.count, published.accuracy is None],
        "published losses": [float(their_step(*batch)) for batch in islice(published.batches, 6)],
        "notes": [list(training.notes), list(published.notes)],
    }


def run_rank(number, endpoints, folder):
    from rigdyno.launchers.tf_config import format_tf_config

    os.environ["TF_CONFIG"] = format_tf_config(endpoints, number)
    from rigdyno.arrangements.multiworker import join
    from rigdyno.contracts import WorkerPlace
    from rigdyno.frameworks.tensorflow import TensorFlow

    TensorFlow().prepare(seed=0, threads=1)
    place = WorkerPlace(device="cpu", rank=number, world_size=RANKS)
    ranks = join(place)
    weights, images, labels = load_inputs(folder)
    with ranks.strategy.scope():
        # Ranks start with different weights: those of rank 0 must win.
        network = make_network([values * (number + 1) for values in weights])
    for variable, values in zip(network.parameters, to_tensorflow(weights), strict=True):
        variable.assign(values)
    parameters = train(network, make_batches(images, labels, number, RANKS), place, ranks)
    agreed = [ranks.agree(10 + number), ranks.agree(2**62 if number == 0 else 3)]
    save_arrays(folder / f"rank{number}.npz", trained=parameters, agreed=np.array(agreed))
    ranks.leave()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "alone":
        run_alone(Path(arguments[0]))
    else:
        run_rank(int(arguments[0]), arguments[1].split(","), Path(arguments[2]))
