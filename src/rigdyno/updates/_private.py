"""What the private updates share: their options, how they draw batches, and the loop of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import CannotRun, Place, Samples, Training, TrainStep, Workload
from rigdyno.errors import BadValue

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

NO_EPSILON = (
    "no epsilon: the workload has no data set of known size to draw Poisson batches from; it was clipped, and given "
    "noise, as if it had"
)


@dataclass(frozen=True, kw_only=True)
class PrivateUpdate:
    framework: ClassVar[str] = "torch"
    private: ClassVar[bool] = True

    noise_multiplier: float = 1.0  # standard deviation of the noise, in units of max_grad_norm
    epsilon: float = 0.0  # instead: the least noise that keeps so many epochs within it
    epochs: int = 0
    max_grad_norm: float = 1.0  # to which each sample's gradient is clipped
    delta: float = 1e-5  # for which epsilon is given
    group_norm: bool = False  # in the place of BatchNorm, which mixes samples

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "max_grad_norm"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure > 0):
                raise BadValue(f"update.{name} must be a number above 0, not {figure!r}", key=f"set.update.{name}")
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise BadValue(f"update.epsilon must not be negative: {self.epsilon!r}", key="set.update.epsilon")
        if (self.epsilon > 0) != (self.epochs > 0) or self.epochs < 0:
            raise BadValue("update.epsilon and update.epochs go together: within it, so long", key="set.update.epsilon")
        if not 0 < self.delta < 1:
            raise BadValue(f"update.delta must lie between 0 and 1, not at {self.delta!r}", key="set.update.delta")

    def refuses(self, workload: Workload) -> str | None:
        return None

    def network(self, training: Training) -> torch.nn.Module:
        """The workload's own, ready to be trained. Whoever else holds it, such as its test, sees it trained."""
        model: torch.nn.Module = training.model
        if training.scaler is not None:
            raise CannotRun("private training clips gradients, and a scaled loss would scale them; try precision=fp32")
        if model._compiled_call_impl is not None:
            raise CannotRun("torch.compile hides the layers whose gradients are clipped; try compiled=false")
        if self.group_norm:
            _put_group_norm(model)
        return model.train()

    def noise(self, training: Training) -> float:
        """As it was set, or for the epsilon that was."""
        if not self.epsilon:
            return self.noise_multiplier
        if training.samples is None:
            raise CannotRun("without a data set of known size no noise can be chosen for an epsilon")
        from rigdyno.engines.dp import BadSetting, noise_multiplier_for

        rate = training.samples.batch_size / training.samples.count
        steps = math.ceil(round(self.epochs / rate, 6))
        try:
            found = noise_multiplier_for(self.epsilon, self.delta, rate, steps)
        except BadSetting as error:
            raise refused(error, training.model) from error
        training.settled = {**training.settled, "noise_multiplier": found}
        return found

    def epoch_epsilon(self, samples: Samples, noise: float) -> float:
        """By the same accountant for every engine, and rounded up to whole batches."""
        from rigdyno.engines.dp import Spent, epsilon

        rate = samples.batch_size / samples.count
        return epsilon([Spent(noise, rate, math.ceil(1 / rate))], self.delta).epsilon

    def check_delta(self, samples: Samples) -> None:
        """Before anything is measured that would then have no epsilon."""
        from rigdyno.engines.dp.accounting import check_delta

        check_delta(self.delta, samples.count)


def _put_group_norm(model: torch.nn.Module) -> None:
    from rigdyno.engines.dp import replace_batch_norm

    for name, child in replace_batch_norm(model).named_children():
        setattr(model, name, child)


def has_batch_norm(model: torch.nn.Module) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())


def refused(words: object, model: torch.nn.Module) -> CannotRun:
    """An engine's own words, on one line, and what to try here."""
    sentence = " ".join(str(words).split())
    return CannotRun(f"{sentence}; here: --set update.group_norm=true" if has_batch_norm(model) else sentence)


def loader_of(samples: Samples, place: Place) -> DataLoader[int]:
    """Of the samples' numbers: those of a batch are fetched all at once."""
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        range(samples.count),  # type: ignore[arg-type]
        batch_size=samples.batch_size,
        collate_fn=samples.pick,
        generator=torch.Generator().manual_seed(place.seed + place.rank),
    )


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def looked_ahead(batches: Iterator[Any]) -> tuple[Iterator[Any], int]:
    """The same batches, and how many samples the first one has."""
    first = next(batches)
    return chain((first,), batches), len(first[1])


def private_step(training: Training, model: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> TrainStep:
    """The loop's body of any engine that hides behind model and optimizer."""
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
