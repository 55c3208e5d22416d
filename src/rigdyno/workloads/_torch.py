"""What the workloads on torch share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IMPORT_SECONDS = 2.0
IMPORT_BYTES = 300_000_000  # of a process that has imported torch and computed something
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
