"""Run one way of training in its own process: `python _dp_arm.py ARM BATCHES NETWORK SAMPLES THREADS`.

BATCHES are `drawn` by Poisson, from the same seed in each arm, or all of one `fixed` size.

Says `ready` and the memory that it had at most once it is warm, or `missing: ...`. Then it takes turns: for each line
with a number of steps that it reads, it runs those and answers with the seconds that passed, the seconds of all its
threads, and the number of samples. A step begins when its batch is at hand.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from _networks import Samples, network
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

NOISE, BOUND = 1.1, 1.0
STEPS_AN_EPOCH = 100
WARM_UP_STEPS, WARM_UP_STEPS_FOR_MEMORY = 2, 5  # so that the peak has seen batches above the mean
WARM_TURN = 3  # steps, from which on a turn begins with one that isn't timed: caches and threads were another arm's
OPACUS = "opacus_"

Step = Callable[[Tensor, Tensor], object]
Training = tuple[Step, Iterable[Any]]


def given_loader(name: str, samples: int) -> DataLoader[Any]:
    chance = torch.Generator().manual_seed(2)
    return DataLoader(Samples(name, STEPS_AN_EPOCH * samples), batch_size=samples, generator=chance)


def batches_of(name: str, samples: int, kind: str) -> Iterable[Any]:
    from rigdyno.engines.dp.batches.sampling import private_loader

    loader = given_loader(name, samples)
    return loader if kind == "fixed" else private_loader(loader)


def stepping(net: Callable[[Tensor], Tensor], optimizer: Optimizer, loss: Any = functional.cross_entropy) -> Step:
    def step(inputs: Tensor, answers: Tensor) -> None:
        optimizer.zero_grad()
        loss(net(inputs), answers).backward()
        optimizer.step()

    return step


def sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.01)


def plain(net: nn.Module) -> Step:
    return stepping(net, sgd(net))


def plain_channels_last(net: nn.Module, compiled: bool = False) -> Step:
    net = net.to(memory_format=torch.channels_last)
    step = stepping(torch.compile(net) if compiled else net, sgd(net))

    def turned_around(inputs: Tensor, answers: Tensor) -> None:
        step(inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs, answers)

    return turned_around


def dp_off(net: nn.Module) -> Step:
    """Train with our kernels and without privacy."""
    from rigdyno.engines.dp.gradients.clipping import Clipping, ClippingNorm
    from rigdyno.engines.dp.training import Wiring

    Wiring(net, Clipping(list(net.named_parameters()), ClippingNorm(None), True))
    return stepping(net, sgd(net))


def ours(net: nn.Module, loader: DataLoader[Any], kernels: bool) -> Training:
    from rigdyno.engines.dp import PrivacyEngine

    net, optimizer, batches = PrivacyEngine(kernels=kernels).make_private(
        module=net, optimizer=sgd(net), data_loader=loader, noise_multiplier=NOISE, max_grad_norm=BOUND
    )
    return stepping(net, optimizer), batches


def opacus(net: nn.Module, loader: DataLoader[Any], mode: str) -> Training:
    """Train as users of Opacus do: its validator replaces what it can't train, and no operation works in place."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    net = ModuleValidator.fix(net)
    for module in net.modules():
        if getattr(module, "inplace", False):
            module.inplace = False
    loss = nn.CrossEntropyLoss()
    ghost = {"criterion": loss} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=net, optimizer=sgd(net), data_loader=loader, noise_multiplier=NOISE, max_grad_norm=BOUND,
        grad_sample_mode=mode, **ghost,
    )  # fmt: skip
    return stepping(made[0], made[1], made[2] if mode == "ghost" else loss), made[-1]


def arm(kind: str, batches: str, name: str, samples: int) -> Training:
    if kind == "jax":
        raise ModuleNotFoundError("JAX has an environment of its own; `make bench` makes it")
    net, loader = network(name), given_loader(name, samples)
    if kind.startswith(OPACUS):
        return opacus(net, loader, kind.removeprefix(OPACUS))
    if kind in ("ours", "ours, torch alone"):
        return ours(net, loader, kernels=kind == "ours")
    step = {
        "plain": plain,
        "plain, channels_last": plain_channels_last,
        "plain, compiled": lambda net: plain_channels_last(net, compiled=True),
        "ours, DP off": dp_off,
    }[kind](net)
    return step, batches_of(name, samples, batches)


def endless(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches


class Stepper:
    def __init__(self, step: Step, batches: Iterable[Any]) -> None:
        self._step, self._batches = step, endless(batches)

    def run(self, steps: int) -> tuple[float, float, int]:
        """Return the seconds that passed, the CPU seconds of all threads, and the number of samples."""
        passed, spent, samples = 0.0, 0.0, 0
        for _ in range(steps):
            inputs, answers = next(self._batches)
            began, began_spending = time.perf_counter(), time.process_time()
            self._step(inputs, answers)
            passed, spent = passed + time.perf_counter() - began, spent + time.process_time() - began_spending
            samples += len(inputs)
        return passed, spent, samples


def peak_bytes() -> int:
    """Not getrusage: a fresh child inherits its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def turns(stepper: Stepper) -> Iterator[str]:
    for line in sys.stdin:
        steps = int(line)
        if steps >= WARM_TURN:
            stepper.run(1)
        yield " ".join(map(str, stepper.run(steps)))


def main() -> None:
    kind, batches, name, samples, threads = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(threads)
    say = os.fdopen(os.dup(1), "w", buffering=1)
    with contextlib.redirect_stdout(sys.stderr):  # compilers print to stdout
        try:
            stepper = Stepper(*arm(kind, batches, name, samples))
            stepper.run(WARM_UP_STEPS if batches == "fixed" or kind.startswith(OPACUS) else WARM_UP_STEPS_FOR_MEMORY)
        except Exception as reason:  # noqa: BLE001 - whatever a peer can't do is told, and the others go on
            print(f"missing: {type(reason).__name__}: {(str(reason).splitlines() or [''])[0][:100]}", file=say)
            return
        print(f"ready {peak_bytes()}", file=say)
        for answer in turns(stepper):
            print(answer, file=say)


if __name__ == "__main__":
    main()
