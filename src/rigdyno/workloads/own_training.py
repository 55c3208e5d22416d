"""Trains what a user's function returns: model, loss, optimizer and batches. Works with every update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from rigdyno.contracts import CannotRun, Samples, Training, WorkerPlace, Workload
from rigdyno.contracts.options import Count
from rigdyno.schema.spec import Value
from rigdyno.schema.system import System
from rigdyno.workloads.common.torch import IMPORT_SECONDS, shuffled_batches
from rigdyno.workloads.common.user_function import check_arguments, find_function, import_user_file

WHAT_IT_RETURNS = (
    "a function for own_training returns (model, loss, optimizer, batches): an nn.Module, a function of outputs and "
    "targets, an optimizer or a function that makes one from parameters, and a data set, a DataLoader, a pair of "
    "tensors or endless batches"
)


@dataclass(frozen=True, kw_only=True)
class OwnTraining(Workload):
    """Trains what a function of your own returns."""

    unit: ClassVar[str] = "sample"
    trains: ClassVar[bool] = True

    file: str = ""
    function: str = "training"
    batch_size: Count = 64  # passed to the function if it takes one

    def refuses(self, system: System, device: str) -> str | None:
        if not self.file:
            return "needs a file with a function; try --set file=train.py --set function=training"
        return None if Path(self.file).is_file() else f"no file '{self.file}'"

    def start_seconds(self) -> float:
        return IMPORT_SECONDS + 3.0

    def build(self, place: WorkerPlace) -> Training:
        import torch

        if place.world_size > 1:
            raise CannotRun("own_training runs in one process: it can't divide a user's batches among ranks")
        torch.manual_seed(place.seed)
        model, loss, optimizer, data = _check_parts(self._call_function())
        model.to(place.device)
        samples = _find_samples(data, self.batch_size, place.device)
        batches = shuffled_batches(samples, place.seed) if samples else _endless_batches(data, place.device)
        settled = {"parameters": sum(each.numel() for each in model.parameters())}
        return Training(
            model=model,
            loss=loss,
            optimizer=_make_optimizer_factory(optimizer),
            batches=batches,
            samples=samples,
            settled={**settled, **({"samples": samples.count} if samples else {})},
            phases=True,
        )

    def _call_function(self) -> Any:
        function = find_function(import_user_file(Path(self.file)), self.function, self.file)
        parameters = inspect.signature(function).parameters.values()
        takes = any(each.name == "batch_size" or each.kind is each.VAR_KEYWORD for each in parameters)
        arguments: dict[str, Value] = {"batch_size": self.batch_size} if takes else {}
        check_arguments(function, arguments, f"{self.function} in {self.file}")
        return function(**arguments)


def _check_parts(returned: Any) -> tuple[Any, Callable[[Any, Any], Any], Any, Any]:
    import torch

    if not isinstance(returned, tuple) or len(returned) != 4 or not isinstance(returned[0], torch.nn.Module):
        raise CannotRun(f"{WHAT_IT_RETURNS}; this one returned {_describe_types(returned)}")
    if not callable(returned[1]):
        raise CannotRun(f"the loss isn't a function of outputs and targets; {WHAT_IT_RETURNS}")
    return returned


def _describe_types(returned: Any) -> str:
    if isinstance(returned, tuple):
        return f"({', '.join(type(part).__name__ for part in returned)})"
    return f"a value of type {type(returned).__name__}"


def _make_optimizer_factory(given: Any) -> Callable[[Any], Any]:
    """Return a function from parameters to an optimizer. If an update trains other parameters than the given optimizer
    has, a new optimizer with the same settings is made."""
    import torch

    if not isinstance(given, torch.optim.Optimizer):
        if not callable(given):
            raise CannotRun(f"the third value isn't an optimizer; {WHAT_IT_RETURNS}")
        return lambda parameters: given([each for each in parameters if each.requires_grad])

    def make_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        wanted = [each for each in parameters if each.requires_grad]
        present = {id(each) for group in given.param_groups for each in group["params"]}
        return given if present == {id(each) for each in wanted} else type(given)(wanted, **given.defaults)

    return make_optimizer


def _find_samples(given: Any, batch_size: int, device: str) -> Samples | None:
    """Return the samples of a data set, or None if its size is unknown."""
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, torch.Tensor) for part in given):
        inputs, targets = (part.to(device) for part in given)
        return Samples(
            len(targets), _check_batch_size(batch_size, len(targets)), lambda chosen: (inputs[chosen], targets[chosen])
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

    return Samples(count, _check_batch_size(batch_size, count), pick)


def _check_batch_size(batch_size: int, count: int) -> int:
    if batch_size > count:
        raise CannotRun(f"batch_size {batch_size} is more than the {count} samples of the data set")
    return batch_size


def _endless_batches(given: Any, device: str) -> Iterator[tuple[Any, Any]]:
    """Move batches to the device. They must be endless, or an iterable that can be iterated again."""
    if not isinstance(given, Iterable):
        raise CannotRun(f"the batches can't be iterated; {WHAT_IT_RETURNS}")
    is_repeatable = not isinstance(given, Iterator)

    def endless() -> Iterator[tuple[Any, Any]]:
        while True:
            is_empty = True
            for inputs, targets in given:
                is_empty = False
                yield inputs.to(device), targets.to(device)
            if is_empty or not is_repeatable:
                raise CannotRun("the batches came to an end; return a data set, or batches that never end")

    first = endless()
    return chain((next(first),), first)
