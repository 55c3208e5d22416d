"""Train privately with JAX, as an arm of dp_peers.py: vmap over samples, compiled as a whole.

It has the same input and output as _dp_arm.py; the network is the same MNIST CNN, with weights of the same shapes.
"""

from __future__ import annotations

import os
import resource
import sys
import time

NOISE, BOUND, LEARNING_RATE = 1.1, 1.0, 0.01
CLASSES = 10
WARM_UP_STEPS = 3


def training(samples: int):
    import jax
    import jax.numpy as jnp
    from jax import lax

    dimensions = ("NCHW", "OIHW", "NCHW")

    def pooled(maps):
        return lax.reduce_window(maps, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    def answer(weights, image):
        maps = image[None]
        for (kernel, bias), padding in zip(weights[:2], ([(3, 3)] * 2, "VALID"), strict=True):
            maps = lax.conv_general_dilated(maps, kernel, (2, 2), padding, dimension_numbers=dimensions)
            maps = pooled(jax.nn.relu(maps + bias[:, None, None]))
        hidden = jax.nn.relu(maps.reshape(-1) @ weights[2][0] + weights[2][1])
        return hidden @ weights[3][0] + weights[3][1]

    def loss(weights, image, label):
        return -jax.nn.log_softmax(answer(weights, image))[label]

    def clipped(gradient):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, BOUND / jnp.sqrt(squares)), gradient)

    def one(weights, image, label):
        return clipped(jax.grad(loss)(weights, image, label))

    @jax.jit
    def step(weights, key, images, labels):
        sums = jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one, (None, 0, 0))(weights, images, labels))
        leaves, form = jax.tree.flatten(sums)
        keys = jax.random.split(key, len(leaves) + 1)
        pairs = zip(leaves, keys[1:], strict=True)
        noisy = [leaf + NOISE * BOUND * jax.random.normal(k, leaf.shape) for leaf, k in pairs]
        means = jax.tree.unflatten(form, [leaf / samples for leaf in noisy])
        return jax.tree.map(lambda weight, mean: weight - LEARNING_RATE * mean, weights, means), keys[0]

    shapes = [((16, 1, 8, 8), 16), ((32, 16, 4, 4), 32), ((512, 32), 32), ((32, CLASSES), CLASSES)]
    chance = jax.random.key(0)
    weights = [(0.05 * jax.random.normal(chance, shape), jnp.zeros(bias)) for shape, bias in shapes]
    images = jax.random.normal(chance, (samples, 1, 28, 28))
    labels = jax.random.randint(chance, (samples,), 0, CLASSES)
    state = [weights, chance]

    def run() -> None:
        state[0], state[1] = step(state[0], state[1], images, labels)
        jax.block_until_ready(state[0])

    return run


def main() -> None:
    samples, threads = int(sys.argv[4]), int(sys.argv[5])
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    try:
        step = training(samples)
    except ImportError as reason:
        print(f"missing: {reason}", flush=True)
        return
    for _ in range(WARM_UP_STEPS):
        step()
    print(f"ready {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}", flush=True)
    for line in sys.stdin:
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - began, time.process_time() - spent, int(line) * samples, flush=True)


if __name__ == "__main__":
    main()
