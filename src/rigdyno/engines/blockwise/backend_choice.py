"""Choose the backend that finishes the volume first, including its preparation, and computes correctly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rigdyno.base.errors import MissingExtra
from rigdyno.engines.blockwise import backends
from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.blocks import count_products, require_finite
from rigdyno.engines.blockwise.boxes import Zyx
from rigdyno.engines.blockwise.errors import BadNetwork, BadSetting, TooLittleMemory
from rigdyno.engines.blockwise.network.model import Model

AGREEMENT = 1e-4  # largest error allowed, as a share of the output range; rounding is a hundredth of that

PATIENCE = 0.02  # share of the time for the volume that may be spent on trying backends that might be faster

USUAL_PREPARATION_SECONDS = 30.0

Clock = Callable[[], float]


@dataclass(frozen=True)
class SampleBlock:
    block: Floats
    size: Zyx
    halo: Zyx


@dataclass(frozen=True)
class BackendTrial:
    name: str
    backend: Backend
    preparation_seconds: float
    products_per_second: float
    error: float  # compared with the unfused network in float32, as a share of the output range

    def seconds(self, products: int) -> float:
        return self.preparation_seconds + products / self.products_per_second

    @property
    def agrees(self) -> bool:
        return self.error <= AGREEMENT

    def describe_error(self) -> str:
        return f"off by {self.error:.1g} of the output range"


@dataclass(frozen=True)
class BackendChoice:
    trial: BackendTrial
    remarks: tuple[str, ...]


def choose_backend(
    wanted: str, model: Model, device: str, sample: SampleBlock, products: int, clock: Clock = time.perf_counter
) -> BackendChoice:
    """Try the backends on a sample, and return the fastest for `products` multiply-adds, or the one that is wanted."""
    if wanted != "auto":
        return _check_wanted(try_backend(make_backend(wanted, model, device), wanted, model, sample, clock))
    first = try_backend(make_backend("torch", model, device), "torch", model, sample, clock)
    trials, remarks = [first], []
    for name in backends.list_names():
        if name == "torch" or backends.load_backend(name).why_not(device):
            continue
        if first.seconds(products) * PATIENCE < USUAL_PREPARATION_SECONDS:
            remarks.append(f"{name} wasn't tried: preparing it takes longer than it could save on this volume")
            continue
        try:
            trials.append(try_backend(make_backend(name, model, device), name, model, sample, clock))
        except (BadNetwork, TooLittleMemory) as error:
            remarks.append(f"{name} isn't used: {error}")
    return _choose_quickest(trials, products, remarks)


def _check_wanted(trial: BackendTrial) -> BackendChoice:
    if trial.agrees:
        return BackendChoice(trial, ())
    if trial.name == "torch":
        return BackendChoice(trial, (_error_remark(trial),))
    raise BadNetwork(f"--backend {trial.name} is {trial.describe_error()} with this network; try --backend torch")


def _choose_quickest(trials: list[BackendTrial], products: int, remarks: list[str]) -> BackendChoice:
    """Return the fastest trial that computes correctly; if there is none, return torch with a remark."""
    first, *others = trials
    remarks += [f"{trial.name} isn't used: it is {trial.describe_error()}" for trial in others if not trial.agrees]
    agreeing = [trial for trial in trials if trial.agrees]
    if not agreeing:
        return BackendChoice(first, (*remarks, _error_remark(first)))
    return BackendChoice(min(agreeing, key=lambda trial: trial.seconds(products)), tuple(remarks))


def _error_remark(trial: BackendTrial) -> str:
    return f"{trial.name} is {trial.describe_error()}, which is more than rounding: check the result"


def make_backend(name: str, model: Model, device: str) -> Backend:
    if name not in backends.list_names():
        raise BadSetting(f"no backend named '{name}'; there are auto, {', '.join(backends.list_names())}")
    kind = backends.load_backend(name)
    reason = kind.why_not(device)
    if reason:
        raise MissingExtra(reason)
    return kind(model, device)


def try_backend(backend: Backend, name: str, model: Model, sample: SampleBlock, clock: Clock) -> BackendTrial:
    """Time a backend on a sample, and compare its output with the reference."""
    began = clock()
    answer = backend.predict(sample.block, sample.size, sample.halo)
    prepared = clock()
    backend.predict(sample.block, sample.size, sample.halo)
    seconds = max(clock() - prepared, 1e-9)
    truth = model.predict_reference(sample.block, sample.size, sample.halo)
    require_finite(truth)
    return BackendTrial(
        name=name,
        backend=backend,
        preparation_seconds=max(0.0, prepared - began - seconds),
        products_per_second=count_products(model, sample.size, sample.halo) / seconds,
        error=float(np.abs(answer - truth).max()) / _output_range(model, truth),
    )


def _output_range(model: Model, truth: Floats) -> float:
    """Return the range that errors are compared with.

    It includes the distance to 0: in a sample that is nearly constant, rounding would look large otherwise.
    """
    if model.bounded:
        return 1.0
    return float(max(truth.max() - truth.min(), np.abs(truth).max())) or 1.0
