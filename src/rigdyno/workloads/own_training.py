"""A user's own training, from a function in a file: model, loss, optimizer and batches, for every update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from rigdyno.contracts import CannotRun, Options, Place, Requirement, Samples, Training
from rigdyno.schema.spec import Value
from rigdyno.schema.system import System
from rigdyno.workloads._function import check_arguments, found_in, imported
from rigdyno.workloads._options import text, whole_number
from rigdyno.workloads._torch import IMPORT_SECONDS, shuffled

WHAT_IT_GIVES = (
    "a function for own_training gives (model, loss, optimizer, batches): an nn.Module, a function of outputs and "
    "targets, an optimizer or a function that makes one of parameters, and a data set, a DataLoader, a pair of tensors "
    "or endless batches"
)


@dataclass(frozen=True, kw_only=True)
class OwnTraining:
    """Trains what a function of your own gives."""

    unit: ClassVar[str] = "sample"
    framework: ClassVar[str] = "torch"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"),)
    arrangement: ClassVar[str] = "single"
    trains: ClassVar[bool] = True
    small: ClassVar[Options] = {}

    file: str = ""
    function: str = "training"
    batch_size: int = 64  # which the function is given, where it takes one

    def __post_init__(self) -> None:
        text("file", self.file)
        text("function", self.function)
        whole_number("batch_size", self.batch_size)

    def refuses(self, system: System, device: str) -> str | None:
        if not self.file:
            return "needs a file with a function; try --set file=train.py --set function=training"
        return None if Path(self.file).is_file() else f"no file '{self.file}'"

    def traps(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, system: System) -> int | None:
        return None

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0

    def step_seconds(self, device: str) -> float | None:
        return None

    def build(self, place: Place) -> Training:
        import torch

        if place.world_size > 1:
            raise CannotRun("own_training has one process: nobody knows how to share out a user's batches")
        torch.manual_seed(place.seed)
        model, loss, optimizer, given = _parts(self._called())
        model.to(place.device)
        samples = _samples(given, self.batch_size, place.device)
        batches = shuffled(samples, place.seed) if samples else _moved(given, place.device)
        settled = {"parameters": sum(each.numel() for each in model.parameters())}
        return Training(
            model=model,
            loss=loss,
            optimizer=_maker(optimizer),
            batches=batches,
            samples=samples,
            settled={**settled, **({"samples": samples.count} if samples else {})},
            phases=True,
        )

    def _called(self) -> Any:
        function = found_in(imported(Path(self.file)), self.function, self.file)
        parameters = inspect.signature(function).parameters.values()
        takes = any(each.name == "batch_size" or each.kind is each.VAR_KEYWORD for each in parameters)
        arguments: dict[str, Value] = {"batch_size": self.batch_size} if takes else {}
        check_arguments(function, arguments, f"{self.function} in {self.file}")
        return function(**arguments)


def _parts(given: Any) -> tuple[Any, Callable[[Any, Any], Any], Any, Any]:
    import torch

    if not isinstance(given, tuple) or len(given) != 4 or not isinstance(given[0], torch.nn.Module):
        raise CannotRun(f"{WHAT_IT_GIVES}; this one gave {_named(given)}")
    if not callable(given[1]):
        raise CannotRun(f"the loss is no function of outputs and targets; {WHAT_IT_GIVES}")
    return given


def _named(given: Any) -> str:
    if isinstance(given, tuple):
        return f"({', '.join(type(part).__name__ for part in given)})"
    return f"a value of type {type(given).__name__}"


def _maker(given: Any) -> Callable[[Any], Any]:
    """An update may train another set of parameters than the optimizer was made with: then it is made anew, with the
    same settings."""
    import torch

    if not isinstance(given, torch.optim.Optimizer):
        if not callable(given):
            raise CannotRun(f"the optimizer is none; {WHAT_IT_GIVES}")
        return lambda parameters: given([each for each in parameters if each.requires_grad])

    def made(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        wanted = [each for each in parameters if each.requires_grad]
        held = {id(each) for group in given.param_groups for each in group["params"]}
        return given if held == {id(each) for each in wanted} else type(given)(wanted, **given.defaults)

    return made


def _samples(given: Any, batch_size: int, device: str) -> Samples | None:
    """Where a data set of known size is behind the batches."""
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, torch.Tensor) for part in given):
        inputs, targets = (part.to(device) for part in given)
        return Samples(
            len(targets), _fitting(batch_size, len(targets)), lambda chosen: (inputs[chosen], targets[chosen])
        )
    loader = given if isinstance(given, DataLoader) else None
    dataset = loader.dataset if loader is not None else given
    if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset):
        return None
    collate = default_collate if loader is None else loader.collate_fn
    count = len(dataset)  # type: ignore[arg-type]
    first = collate([dataset[0]])

    def pick(chosen: Sequence[int]) -> tuple[Any, Any]:
        if not len(chosen):
            return tuple(part[:0].to(device) for part in first)
        inputs, targets = collate([dataset[int(number)] for number in chosen])
        return inputs.to(device), targets.to(device)

    return Samples(count, _fitting(batch_size, count), pick)


def _fitting(batch_size: int, count: int) -> int:
    if batch_size > count:
        raise CannotRun(f"batch_size {batch_size} is more than the {count} samples of the data set")
    return batch_size


def _moved(given: Any, device: str) -> Iterator[tuple[Any, Any]]:
    """A stream: it must not end, or else can be begun anew."""
    if not isinstance(given, Iterable):
        raise CannotRun(f"the batches are none; {WHAT_IT_GIVES}")
    anew = not isinstance(given, Iterator)

    def endless() -> Iterator[tuple[Any, Any]]:
        while True:
            some = False
            for inputs, targets in given:
                some = True
                yield inputs.to(device), targets.to(device)
            if not (anew and some):
                raise CannotRun("the batches came to an end; give a data set, or batches that never end")

    first = endless()
    return chain((next(first),), first)
