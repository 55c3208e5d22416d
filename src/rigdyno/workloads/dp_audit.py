"""An audit of a private update: a small network with canaries, trained again and again to refute what is claimed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno import catalogue
from rigdyno.contracts import CannotRun, Options, Place, Requirement, Samples, Steps, Training
from rigdyno.errors import MissingExtra
from rigdyno.schema.system import System
from rigdyno.workloads._options import number_between, text, whole_number
from rigdyno.workloads._torch import IMPORT_BYTES, IMPORT_SECONDS, shuffled

if TYPE_CHECKING:
    import torch
    from torch.utils.data import TensorDataset

    from rigdyno.engines.dp import Audit

LEARNING_RATE = 0.1
LEAST_RUNS = 100  # the test learns from the first of them
RATE, STEPS = 0.5, 2  # so that sampling is audited too


class _Nobody:
    def sum(self, tensors: list[Any]) -> None:
        pass

    def agree(self, number: int) -> int:
        return number


@dataclass(frozen=True, kw_only=True)
class DpAudit:
    """Audits a private update: does it leak more than it claims?"""

    unit: ClassVar[str] = "audit"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("dp_accounting", extra="private"))
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = False
    small: ClassVar[Options] = {"runs": LEAST_RUNS, "update": "dp_expanded"}

    update: str = "dp_fast"
    mode: str = ""  # of the update, where it has several
    runs: int = 300
    noise_multiplier: float = 1.0
    claimed_noise: float = 0.0  # what is claimed; 0: the noise that there is
    delta: float = 1e-5

    def __post_init__(self) -> None:
        text("update", self.update)
        text("mode", self.mode)
        whole_number("runs", self.runs, LEAST_RUNS)
        number_between("noise_multiplier", self.noise_multiplier, 1e-6, 1000)
        number_between("claimed_noise", self.claimed_noise, 0, 1000)
        number_between("delta", self.delta, 1e-12, 0.01)

    def refuses(self, system: System, device: str) -> str | None:
        if self.update not in catalogue.names("update") or not catalogue.load("update", self.update).private:
            known = [name for name in catalogue.names("update") if catalogue.load("update", name).private]
            return f"'{self.update}' is no private update; there are {', '.join(known)}"
        try:
            catalogue.demand(catalogue.load("update", self.update).requires, f"update {self.update}")
        except MissingExtra as error:
            return str(error)
        return None if device == "cpu" else "the auditor's small network is for the CPU; try --device cpu"

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + 300_000_000

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 5.0

    def step_seconds(self, device: str) -> float | None:
        return self.runs * 0.03

    def build(self, place: Place) -> Steps:
        from rigdyno.engines.dp import AuditTask, Spent, audit, epsilon

        task = AuditTask()
        claim = Spent(self.claimed_noise or self.noise_multiplier, RATE, STEPS)

        @cache
        def claimed(delta: float) -> float:
            return epsilon([claim], delta).epsilon

        found: list[Audit] = []

        def step() -> float:
            found.append(
                audit(self._train, claimed=claimed, delta=self.delta, task=task, runs=self.runs, seed=place.seed)
            )
            return 1.0

        return Steps(
            kinds={"step": step},
            settled={"claimed_epsilon": claimed(self.delta)},
            check=lambda: all(each.holds for each in found) if found else None,
            shown_epsilon=lambda: max((each.lower_bound for each in found), default=None),
            notes=(f"{task.canaries} canaries, Poisson batches of a half, {STEPS} steps",),
        )

    def _train(self, model: torch.nn.Module, dataset: TensorDataset, seed: int) -> None:
        import torch

        inputs, labels = dataset.tensors
        samples = Samples(len(labels), round(RATE * len(labels)), lambda chosen: (inputs[chosen], labels[chosen]))
        training = Training(
            model=model,
            loss=torch.nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
            batches=shuffled(samples, seed),
            samples=samples,
        )
        step = self._update().prepare(training, Place(device="cpu", seed=seed), _Nobody())
        for _ in range(STEPS):
            step(*next(training.batches))

    def _update(self) -> Any:
        """By its name: whatever is registered as an update can be audited."""
        kind = catalogue.load("update", self.update)
        own: dict[str, Any] = {"mode": self.mode} if self.mode else {}
        try:
            return kind(noise_multiplier=self.noise_multiplier, delta=self.delta, **own)
        except TypeError as error:
            raise CannotRun(f"the update '{self.update}' can't be set up for an audit: {error}") from error
