"""Functions that the PyTorch workloads share: batches, accuracy, weights, flop counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, Samples, Validation, WorkerPlace
from rigdyno.workloads.datasets.labelled import epoch_orders

if TYPE_CHECKING:
    import torch

IMPORT_SECONDS = 2.0

IMPORT_BYTES = 300_000_000  # memory of a process that has imported torch and computed something

FORWARD_AND_BACKWARD = 3  # cost relative to a forward pass: the backward pass has two products for each product

FILL_BYTES_PER_SECOND = 1e9  # first touch of new memory: limited by page faults, not by bandwidth

LOOK_EVERY = 25  # steps between two validations

_SAMPLED = 1024


def is_host(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def waiter(device: str) -> Callable[[], None]:
    """Return a function that waits until the device has finished its work. If kinds of step take turns, each step must
    end with it; else the work of one kind would be timed with the next."""
    if is_host(device):
        return _do_nothing
    import torch

    return partial(torch.accelerator.synchronize, device)


def _do_nothing() -> None:
    pass


def is_filled_with(tensor: torch.Tensor, value: float) -> bool:
    """Check about a thousand elements, spread over the tensor, for this value."""
    flat = tensor.view(-1)
    # An odd stride: a stride that divides the row length would check a single column.
    sample = flat[:: (flat.numel() // _SAMPLED) | 1]
    return bool((sample == value).all())


def count_forward_flop(network: Callable[[], torch.nn.Module], image_size: int) -> float:
    """Count the operations of one image, two per multiply-add, on meta tensors without memory."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network().eval()(torch.empty(1, 3, image_size, image_size))
    return float(counter.get_total_flops())


def load_weights(
    model: torch.nn.Module, path: Path, fitting: Callable[[dict[str, Any]], dict[str, Any]] = lambda state: state
) -> None:
    """Load a state dict. Only tensors are read: a file that would execute code is refused. `fitting` may change the
    state dict first."""
    import pickle

    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(fitting(state))
    except (OSError, RuntimeError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise CannotRun(f"{path} has no weights for this network: {first_line}") from error


def check_target_accuracy(target: float, validation: int) -> None:
    if target and not validation:
        raise BadValue(
            "target_accuracy needs validation images: set validation, e.g. validation=5000", key="set.target_accuracy"
        )


def make_validation(model: torch.nn.Module, samples: Samples, target: float, place: WorkerPlace) -> Validation | None:
    if target and place.world_size > 1:
        raise CannotRun("target_accuracy works in a single process only: ranks can't agree on when to stop")
    return Validation(make_accuracy(model, samples), target, LOOK_EVERY) if target else None


def shuffled_batches(samples: Samples, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches epoch after epoch, each in a new order; the last batch of an epoch may be smaller."""
    for order in epoch_orders(samples.count, seed):
        for start in range(0, samples.count, samples.batch_size):
            yield samples.pick(order[start : start + samples.batch_size])  # type: ignore[arg-type]


def make_accuracy(model: torch.nn.Module, samples: Samples) -> Callable[[], float]:
    """Return a function that computes the share of samples that the model classifies correctly."""
    import torch

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        starts = range(0, samples.count, samples.batch_size)
        batches = (samples.pick(range(start, min(start + samples.batch_size, samples.count))) for start in starts)
        correct = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in batches)
        model.train()
        return correct / samples.count

    return accuracy
