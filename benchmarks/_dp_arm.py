"""One way of training, in a process of its own: `python _dp_arm.py ARM NETWORK SAMPLES THREADS`.

Says `ready` once it is warm, or `missing: ...`. Then it takes turns: for each line with a number of steps that it
reads, it runs those and answers with the seconds that passed and the seconds of all its threads. At the end of its
input it says how much memory it had at most.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator

import torch
from _networks import batch, network
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

NOISE, BOUND = 1.1, 1.0
WARM_UP_STEPS = 3
OPACUS = "opacus_"

Step = Callable[[], object]


def plain(name: str, samples: int, channels_last: bool, compiled: bool = False) -> Step:
    net, (inputs, answers) = network(name), batch(name, samples)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
    called = torch.compile(net) if compiled else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(called(inputs), answers).backward()
        optimizer.step()

    return step


def ours(name: str, samples: int, kernels: bool, private: bool = True) -> Step:
    from rigdyno.engines.dp import GivenBatches, PrivacyEngine
    from rigdyno.engines.dp.clipping import Bound, Clipping
    from rigdyno.engines.dp.wiring import Wiring

    net, (inputs, answers) = network(name), batch(name, samples)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = itertools.repeat((inputs, answers))
    if private:
        given = GivenBatches(batches, samples)
        PrivacyEngine(kernels=kernels).make_private_with_batches(
            module=net, optimizer=optimizer, batches=given, noise_multiplier=NOISE, max_grad_norm=BOUND
        )
        batches = iter(given)
    else:
        Wiring(net, Clipping(list(net.named_parameters()), Bound(None), kernels))

    def step() -> None:
        inputs, answers = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(net(inputs), answers).backward()
        optimizer.step()

    return step


def opacus(name: str, samples: int, mode: str) -> Step:
    import opacus

    net, (inputs, answers) = network(name), batch(name, samples)
    optimizer, loss = torch.optim.SGD(net.parameters(), lr=0.01), nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(inputs, answers), batch_size=samples)
    ghost = {"criterion": loss} if mode == "ghost" else {}
    made = opacus.PrivacyEngine().make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=NOISE, max_grad_norm=BOUND,
        poisson_sampling=False, grad_sample_mode=mode, **ghost,
    )  # fmt: skip
    net, optimizer = made[:2]
    loss = made[2] if mode == "ghost" else loss

    def step() -> None:
        optimizer.zero_grad()
        loss(net(inputs), answers).backward()
        optimizer.step()

    return step


def arm(kind: str, name: str, samples: int) -> Step:
    if kind == "jax":
        raise ModuleNotFoundError("JAX has an environment of its own; `make bench` makes it")
    if kind.startswith(OPACUS):
        return opacus(name, samples, kind.removeprefix(OPACUS))
    return {
        "plain": lambda: plain(name, samples, channels_last=False),
        "plain, channels_last": lambda: plain(name, samples, channels_last=True),
        "plain, compiled": lambda: plain(name, samples, channels_last=True, compiled=True),
        "ours, DP off": lambda: ours(name, samples, kernels=True, private=False),
        "ours, torch alone": lambda: ours(name, samples, kernels=False),
        "ours": lambda: ours(name, samples, kernels=True),
    }[kind]()


def turns(step: Step) -> Iterator[str]:
    for line in sys.stdin:
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        yield f"{time.perf_counter() - began} {time.process_time() - spent}"
    yield str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    kind, name, samples, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    say = os.fdopen(os.dup(1), "w", buffering=1)
    with contextlib.redirect_stdout(sys.stderr):  # compilers talk
        try:
            step = arm(kind, name, samples)
            for _ in range(WARM_UP_STEPS):
                step()
        except Exception as reason:  # noqa: BLE001 - whatever a peer can't do is told, and the others go on
            print(f"missing: {type(reason).__name__}: {str(reason).splitlines()[0][:100]}", file=say)
            return
        print("ready", file=say)
        for answer in turns(step):
            print(answer, file=say)


if __name__ == "__main__":
    main()
