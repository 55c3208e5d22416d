"""Audits a private update: trains a small network with canaries again and again, to refute the claimed epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from rigdyno import catalogue
from rigdyno.base.errors import MissingExtra
from rigdyno.contracts import CannotRun, Options, Requirement, Samples, Steps, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Factor
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_BYTES, IMPORT_SECONDS, shuffled_batches

if TYPE_CHECKING:
    import torch
    from torch.utils.data import TensorDataset

    from rigdyno.engines.dp import Audit

LEARNING_RATE = 0.1

LEAST_RUNS = 100  # the first runs fix the thresholds of the test

RATE, STEPS = 0.5, 2  # a rate below 1, so that sampling is audited too


class _SingleRank:
    """A collective of one rank."""

    def sum(self, tensors: list[Any]) -> None:
        pass

    def agree(self, number: int) -> int:
        return number


@dataclass(frozen=True, kw_only=True)
class DpAudit(Workload):
    """Audits a private update: does it leak more than it claims?"""

    unit: ClassVar[str] = "audit"
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("dp_accounting", extra="private"))
    small: ClassVar[Options] = {"runs": LEAST_RUNS, "update": "dp_expanded"}

    update: str = "dp_fast"
    mode: str = ""  # the update's mode, if it has several
    runs: Annotated[int, Meta(ge=LEAST_RUNS)] = 300
    noise_multiplier: Annotated[float, Meta(ge=1e-06, lt=1000)] = 1.0
    claimed_noise: Factor = 0.0  # noise multiplier that is claimed; 0: the true one
    delta: Annotated[float, Meta(ge=1e-12, lt=0.01)] = 1e-5

    def refuses(self, system: System, device: str) -> str | None:
        if self.update not in catalogue.names("update") or not catalogue.load("update", self.update).private:
            known = [name for name in catalogue.names("update") if catalogue.load("update", name).private]
            return f"'{self.update}' is not a private update; try {', '.join(known)}"
        try:
            catalogue.require_installed(catalogue.load("update", self.update).requires, f"update {self.update}")
        except MissingExtra as error:
            return str(error)
        return None if device == "cpu" else "an audit runs on the CPU only; try --device cpu"

    def memory_bytes(self, system: System) -> int:
        return IMPORT_BYTES + 300_000_000

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 5.0

    def step_seconds(self, device: str) -> float | None:
        return self.runs * 0.03

    def build(self, place: WorkerPlace) -> Steps:
        from rigdyno.engines.dp import AuditTask, Spent, audit, epsilon

        task = AuditTask()
        claim = Spent(self.claimed_noise or self.noise_multiplier, RATE, STEPS)

        @cache
        def claimed(delta: float) -> float:
            return epsilon([claim], delta).epsilon

        audits: list[Audit] = []

        def step() -> float:
            audits.append(
                audit(self._train, claimed=claimed, delta=self.delta, task=task, runs=self.runs, seed=place.seed)
            )
            return 1.0

        return Steps(
            kinds={"step": step},
            settled={"claimed_epsilon": claimed(self.delta)},
            check=lambda: all(each.holds for each in audits) if audits else None,
            shown_epsilon=lambda: max((each.lower_bound for each in audits), default=None),
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
            batches=shuffled_batches(samples, seed),
            samples=samples,
        )
        step = self._make_update().prepare(training, WorkerPlace(device="cpu", seed=seed), _SingleRank())
        for _ in range(STEPS):
            step(*next(training.batches))

    def _make_update(self) -> Any:
        """Make the update by its name, so that every registered update can be audited."""
        kind = catalogue.load("update", self.update)
        own: dict[str, Any] = {"mode": self.mode} if self.mode else {}
        try:
            return kind(noise_multiplier=self.noise_multiplier, delta=self.delta, **own)
        except TypeError as error:
            raise CannotRun(f"the update '{self.update}' can't be set up for an audit: {error}") from error
