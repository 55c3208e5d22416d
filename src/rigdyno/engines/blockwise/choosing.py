"""Which backend: the one that is through with the volume first, its preparation counted, and calculates rightly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rigdyno.engines.blockwise import backends
from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.cutting import products as products_of
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, MissingExtra, TooLittleMemory
from rigdyno.engines.blockwise.halo import require_finite
from rigdyno.engines.blockwise.network.model import Model

AGREEMENT = 1e-4  # of the answer's range: rounding is a hundredth of that
PATIENCE = 0.02  # of the time that the volume takes may go into trying what might be quicker
USUAL_PREPARATION_SECONDS = 30.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class Sample:
    block: Floats
    size: Zyx
    halo: Zyx


@dataclass(frozen=True)
class Trial:
    name: str
    backend: Backend
    preparation_seconds: float
    products_per_second: float
    error: float  # of the answer's range, against float32 without any rearranging

    def seconds(self, products: int) -> float:
        return self.preparation_seconds + products / self.products_per_second

    @property
    def agrees(self) -> bool:
        return self.error <= AGREEMENT

    def off(self) -> str:
        return f"off by {self.error:.1g} of the answer's range"


@dataclass(frozen=True)
class Choice:
    trial: Trial
    remarks: tuple[str, ...]


def choose_backend(
    wanted: str, model: Model, device: str, sample: Sample, products: int, clock: Clock = time.perf_counter
) -> Choice:
    if wanted != "auto":
        return _wanted(try_backend(made(wanted, model, device), wanted, model, sample, clock))
    first = try_backend(made("torch", model, device), "torch", model, sample, clock)
    trials, remarks = [first], []
    for name in backends.names():
        if name == "torch" or backends.backend(name).why_not(device):
            continue
        if first.seconds(products) * PATIENCE < USUAL_PREPARATION_SECONDS:
            remarks.append(f"{name} wasn't tried: preparing it takes longer than it could save on this volume")
            continue
        try:
            trials.append(try_backend(made(name, model, device), name, model, sample, clock))
        except (BadNetwork, TooLittleMemory) as error:
            remarks.append(f"{name} isn't used: {error}")
    return _quickest(trials, products, remarks)


def _wanted(trial: Trial) -> Choice:
    if trial.agrees:
        return Choice(trial, ())
    if trial.name == "torch":
        return Choice(trial, (_doubt(trial),))
    raise BadNetwork(f"--backend {trial.name} is {trial.off()} with this network; try --backend torch")


def _quickest(trials: list[Trial], products: int, remarks: list[str]) -> Choice:
    """Of those that agree. torch is taken also if it doesn't: there may be nothing else, and it is said."""
    first, *others = trials
    remarks += [f"{trial.name} isn't used: it is {trial.off()}" for trial in others if not trial.agrees]
    agreeing = [trial for trial in trials if trial.agrees]
    if not agreeing:
        return Choice(first, (*remarks, _doubt(first)))
    return Choice(min(agreeing, key=lambda trial: trial.seconds(products)), tuple(remarks))


def _doubt(trial: Trial) -> str:
    return f"{trial.name} is {trial.off()}, which is more than rounding: look at the result"


def made(name: str, model: Model, device: str) -> Backend:
    if name not in backends.names():
        raise BadSetting(f"no backend named '{name}'; there are auto, {', '.join(backends.names())}")
    kind = backends.backend(name)
    reason = kind.why_not(device)
    if reason:
        raise MissingExtra(reason)
    return kind(model, device)


def try_backend(backend: Backend, name: str, model: Model, sample: Sample, clock: Clock) -> Trial:
    began = clock()
    answer = backend.predict(sample.block, sample.size, sample.halo)
    prepared = clock()
    backend.predict(sample.block, sample.size, sample.halo)
    seconds = max(clock() - prepared, 1e-9)
    truth = model.reference(sample.block, sample.size, sample.halo)
    require_finite(truth)
    return Trial(
        name=name,
        backend=backend,
        preparation_seconds=max(0.0, prepared - began - seconds),
        products_per_second=products_of(model, sample.size, sample.halo) / seconds,
        error=float(np.abs(answer - truth).max()) / _width(model, truth),
    )


def _width(model: Model, truth: Floats) -> float:
    """Not only what this sample happens to span: where it is nearly the same everywhere, rounding would look large."""
    if model.bounded:
        return 1.0
    return float(max(truth.max() - truth.min(), np.abs(truth).max())) or 1.0
