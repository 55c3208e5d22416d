"""What the private updates by our own engine share; it hides behind network, optimizer and loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import Collective, Place, Requirement, Training, TrainStep, Workload
from rigdyno.updates._private import (
    NO_EPSILON,
    PrivateUpdate,
    endless,
    loader_of,
    looked_ahead,
    private_step,
    refused,
)

if TYPE_CHECKING:
    import torch

    from rigdyno.engines.dp import PrivacyEngine


@dataclass(frozen=True, kw_only=True)
class EngineUpdate(PrivateUpdate):
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("dp_accounting", extra="private"))

    ledger: str = ""  # a file that counts over several runs: what was spent before a kill stays counted

    def engine(self) -> PrivacyEngine:
        raise NotImplementedError

    def refuses(self, workload: Workload) -> str | None:
        if getattr(workload, "precision", "fp32") in ("bf16", "fp16"):
            return "this update clips in float32, and doesn't know half precision; try precision=fp32"
        return None

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
        from rigdyno.engines.dp import BadSetting, MixesSamples, Unprotected

        model = self.network(training)
        optimizer = training.optimizer(list(model.parameters()))
        refusals = (BadSetting, MixesSamples, Unprotected)
        try:
            engine = self.engine()
            self._make_private(engine, training, optimizer, place)
        except refusals as error:
            raise refused(error, model) from error
        take_step = private_step(training, model, optimizer)

        def step(inputs: Any, targets: Any) -> Any:
            try:
                return take_step(inputs, targets)
            except refusals as error:  # some of it shows only when samples go through
                raise refused(error, model) from error

        return step

    def _make_private(
        self, engine: PrivacyEngine, training: Training, optimizer: torch.optim.Optimizer, place: Place
    ) -> None:
        """With Poisson batches where there is a data set, and else with the workload's own."""
        from rigdyno.engines.dp import GivenBatches

        noise = self.noise(training)
        if training.samples is None:
            given = GivenBatches(*looked_ahead(training.batches))
            engine.make_private_with_batches(
                module=training.model,
                optimizer=optimizer,
                batches=given,
                noise_multiplier=noise,
                max_grad_norm=self.max_grad_norm,
            )
            training.batches, training.notes = iter(given), (*training.notes, NO_EPSILON)
            return
        self.check_delta(training.samples)
        _, _, drawn = engine.make_private(
            module=training.model,
            optimizer=optimizer,
            data_loader=loader_of(training.samples, place),
            noise_multiplier=noise,
            max_grad_norm=self.max_grad_norm,
        )
        samples = training.samples
        training.batches, training.epsilon = endless(drawn), lambda: engine.get_epsilon(self.delta)
        training.epoch_epsilon = lambda: self.epoch_epsilon(samples, noise)
