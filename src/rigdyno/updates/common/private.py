"""Base classes of the private updates: options, Poisson batches, and the training step.

`EngineUpdate` is the base of the updates that use Rigdyno's own engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.base.errors import BadValue
from rigdyno.contracts import (
    CannotRun,
    Collective,
    Requirement,
    Samples,
    Training,
    TrainStep,
    Update,
    WorkerPlace,
    Workload,
)
from rigdyno.contracts.options import Natural, NotNegative, Positive, Probability

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from rigdyno.engines.dp import PrivacyEngine

NO_EPSILON = (
    "no epsilon: the workload has no data set of known size to draw Poisson batches from; gradients were clipped and "
    "given noise all the same"
)


@dataclass(frozen=True, kw_only=True)
class PrivateUpdate(Update):
    private: ClassVar[bool] = True

    noise_multiplier: Positive = 1.0  # standard deviation of the noise, in units of max_grad_norm
    epsilon: NotNegative = 0.0  # if above 0: choose the smallest noise that keeps `epochs` epochs within it
    epochs: Natural = 0
    max_grad_norm: Positive = 1.0  # clipping norm of per-sample gradients
    delta: Probability = 1e-5  # probability at which epsilon holds
    group_norm: bool = False  # replace BatchNorm, which mixes samples, by GroupNorm

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon > 0) != (self.epochs > 0):
            raise BadValue("update.epsilon and update.epochs must be set together", key="set.update.epsilon")

    def refuses(self, workload: Workload) -> str | None:
        return None

    def prepare_network(self, training: Training) -> torch.nn.Module:
        """Return the workload's network in training mode. It is changed in place, so that its accuracy function sees
        the trained network."""
        model: torch.nn.Module = training.model
        if training.scaler is not None:
            raise CannotRun("private training clips gradients, and a scaled loss would scale them; try precision=fp32")
        if model._compiled_call_impl is not None:
            raise CannotRun("torch.compile hides the layers whose gradients are clipped; try compiled=false")
        if self.group_norm:
            _replace_batch_norm(model)
        return model.train()

    def choose_noise(self, training: Training) -> float:
        """Return the noise multiplier: the given one, or the one for the given epsilon."""
        if not self.epsilon:
            return self.noise_multiplier
        if training.samples is None:
            raise CannotRun("no noise can be chosen for update.epsilon: the workload has no data set of known size")
        from rigdyno.engines.dp import BadSetting, noise_multiplier_for

        rate = training.samples.batch_size / training.samples.count
        steps = math.ceil(round(self.epochs / rate, 6))
        try:
            noise = noise_multiplier_for(self.epsilon, self.delta, rate, steps)
        except BadSetting as error:
            raise refusal_error(error, training.model) from error
        training.settled = {**training.settled, "noise_multiplier": noise}
        return noise

    def epoch_epsilon(self, samples: Samples, noise: float) -> float:
        """Return the epsilon of one epoch, rounded up to whole batches, by the same accountant for every engine."""
        from rigdyno.engines.dp import Spent, epsilon

        rate = samples.batch_size / samples.count
        return epsilon([Spent(noise, rate, math.ceil(1 / rate))], self.delta).epsilon

    def check_delta(self, samples: Samples) -> None:
        """Refuse an unsuitable delta before anything is measured; else there would be no epsilon in the end."""
        from rigdyno.engines.dp.accounting import check_delta

        check_delta(self.delta, samples.count)


def _replace_batch_norm(model: torch.nn.Module) -> None:
    from rigdyno.engines.dp import replace_batch_norm

    for name, child in replace_batch_norm(model).named_children():
        setattr(model, name, child)


def has_batch_norm(model: torch.nn.Module) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())


def refusal_error(words: object, model: torch.nn.Module) -> CannotRun:
    """Return an engine's message on one line, with what to try."""
    sentence = " ".join(str(words).split())
    return CannotRun(f"{sentence}; here: --set update.group_norm=true" if has_batch_norm(model) else sentence)


def make_loader(samples: Samples, place: WorkerPlace) -> DataLoader[int]:
    """Return a loader over the indices of the samples; all samples of a batch are picked at once."""
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        range(samples.count),  # type: ignore[arg-type]
        batch_size=samples.batch_size,
        collate_fn=samples.pick,
        generator=torch.Generator().manual_seed(place.seed + place.rank),
    )


def repeat_forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def peek_batch_size(batches: Iterator[Any]) -> tuple[Iterator[Any], int]:
    """Return the same batches, and the size of the first one."""
    first = next(batches)
    return chain((first,), batches), len(first[1])


def make_private_step(training: Training, model: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> TrainStep:
    """Return the training step for a private model and optimizer of any engine."""
    loss_of, mark = training.loss, training.mark

    def step(inputs: Any, targets: Any) -> Any:
        loss = loss_of(model(inputs), targets)
        mark("forward")
        loss.backward()
        mark("backward")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark("optimizer")
        return loss.detach()

    return step


@dataclass(frozen=True, kw_only=True)
class EngineUpdate(PrivateUpdate):
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("dp_accounting", extra="private"))

    ledger: str = ""  # file that accumulates over runs; spending before a kill stays counted

    def make_engine(self) -> PrivacyEngine:
        raise NotImplementedError

    def refuses(self, workload: Workload) -> str | None:
        if getattr(workload, "precision", "fp32") in ("bf16", "fp16"):
            return "this update clips in float32 and doesn't support half precision; try precision=fp32"
        return None

    def prepare(self, training: Training, place: WorkerPlace, collective: Collective) -> TrainStep:
        from rigdyno.engines.dp import BadSetting, MixesSamples, Unprotected

        model = self.prepare_network(training)
        optimizer = training.optimizer(list(model.parameters()))
        refusals = (BadSetting, MixesSamples, Unprotected)
        try:
            engine = self.make_engine()
            self._make_private(engine, training, optimizer, place)
        except refusals as error:
            raise refusal_error(error, model) from error
        take_step = make_private_step(training, model, optimizer)

        def step(inputs: Any, targets: Any) -> Any:
            try:
                return take_step(inputs, targets)
            except refusals as error:  # some problems show only when samples are processed
                raise refusal_error(error, model) from error

        return step

    def _make_private(
        self, engine: PrivacyEngine, training: Training, optimizer: torch.optim.Optimizer, place: WorkerPlace
    ) -> None:
        """Make the training private, with Poisson batches if there is a data set, else with the workload's batches."""
        from rigdyno.engines.dp import GivenBatches

        noise = self.choose_noise(training)
        if training.samples is None:
            given = GivenBatches(*peek_batch_size(training.batches))
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
        _, _, loader = engine.make_private(
            module=training.model,
            optimizer=optimizer,
            data_loader=make_loader(training.samples, place),
            noise_multiplier=noise,
            max_grad_norm=self.max_grad_norm,
        )
        samples = training.samples
        training.batches, training.epsilon = repeat_forever(loader), lambda: engine.get_epsilon(self.delta)
        training.epoch_epsilon = lambda: self.epoch_epsilon(samples, noise)
