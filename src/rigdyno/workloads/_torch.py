"""What the workloads on torch share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rigdyno.contracts import CannotRun, Place, Samples, Validation
from rigdyno.errors import BadValue
from rigdyno.workloads._labelled import orders
from rigdyno.workloads._options import number_between, whole_number

if TYPE_CHECKING:
    import torch

IMPORT_SECONDS = 2.0
IMPORT_BYTES = 300_000_000  # of a process that has imported torch and computed something
FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass: the backward pass has two products for each of its
FILL_BYTES_PER_SECOND = 1e9  # first touch of fresh memory: page faults, not bandwidth

_SAMPLED = 1024


def is_host(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def waiter(device: str) -> Callable[[], None]:
    """Waits until the device has done all that it was given. Where kinds of step take turns each step ends with it, or
    one kind's work would be timed as the next one's."""
    if is_host(device):
        return _nothing_to_wait_for
    import torch

    return partial(torch.accelerator.synchronize, device)


def _nothing_to_wait_for() -> None:
    pass


def is_everywhere(tensor: torch.Tensor, value: float) -> bool:
    """Whether about a thousand elements all over the tensor have this value."""
    flat = tensor.view(-1)
    # An odd stride: one that divides the row length would look at a single column.
    sample = flat[:: (flat.numel() // _SAMPLED) | 1]
    return bool((sample == value).all())


def forward_flop(network: Callable[[], torch.nn.Module], image_size: int) -> float:
    """Of one image, two for each multiplication with its addition; counted on tensors without memory."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network().eval()(torch.empty(1, 3, image_size, image_size))
    return float(counter.get_total_flops())


def load_weights(
    model: torch.nn.Module, path: Path, fitting: Callable[[dict[str, Any]], dict[str, Any]] = lambda state: state
) -> None:
    """Tensors only: a file that would execute code is refused. `fitting` may leave out what isn't wanted."""
    import pickle

    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(fitting(state))
    except (OSError, RuntimeError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        first = str(error).strip().partition("\n")[0]
        raise CannotRun(f"{path} holds no weights of this network: {first}") from error


LOOK_EVERY = 25  # steps, between two looks at validation images


def check_until(until: float, validation: int) -> None:
    number_between("until", until, 0, 1)
    whole_number("validation", validation, 0)
    if until and not validation:
        raise BadValue("until needs images that decide: set validation, e.g. validation=5000", key="set.until")


def validation_of(model: torch.nn.Module, samples: Samples, until: float, place: Place) -> Validation | None:
    if until and place.world_size > 1:
        raise CannotRun("until is for one process: ranks would have to agree when it is enough")
    return Validation(accuracy_of(model, samples), until, LOOK_EVERY) if until else None


def shuffled(samples: Samples, seed: int) -> Iterator[tuple[Any, Any]]:
    """Epoch after epoch, each in a new order; the last batch of an epoch may be smaller."""
    for order in orders(samples.count, seed):
        for start in range(0, samples.count, samples.batch_size):
            yield samples.pick(order[start : start + samples.batch_size])  # type: ignore[arg-type]


def accuracy_of(model: torch.nn.Module, samples: Samples) -> Callable[[], float]:
    """The share of these that the model names rightly."""
    import torch

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        starts = range(0, samples.count, samples.batch_size)
        batches = (samples.pick(range(start, min(start + samples.batch_size, samples.count))) for start in starts)
        right = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in batches)
        model.train()
        return right / samples.count

    return accuracy
