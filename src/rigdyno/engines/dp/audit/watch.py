"""What an engine released, as seen from outside: the parameters after each step of an optimizer.

Any engine that uses a torch optimizer on the model's own parameters is seen step by step. Of any other, the parameters
at the end are seen. Nothing is read that a user of the engine could not publish: no gradients, no state of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.errors import BadSetting

Floats = NDArray[np.float64]


class Traces:
    """How far the parameters moved against each canary's gradient at the start: in each parameter by itself, since an
    engine may forget one, and in all together. Each in sum over the steps, and in the step where it was most."""

    def __init__(self, task: AuditTask) -> None:
        named = dict((model := task.model()).named_parameters())
        self._start = _flat(model)
        gradients = _per_canary(model, task)
        parts = gradients.split([parameter.numel() for parameter in named.values()], dim=1)
        places = [*named, "all parameters"] if len(named) > 1 else ["all parameters"]
        own = [nn.functional.pad(part, (before, 0)) for part, before in zip(parts, _offsets(parts), strict=True)]
        own = [nn.functional.pad(each, (0, gradients.shape[1] - each.shape[1])) for each in own]
        directions = [*own, gradients] if len(named) > 1 else [gradients]
        self._directions = [nn.functional.normalize(each, dim=1) for each in directions]
        self.names = [f"a canary's {kind} in {place}" for kind in ("trace", "largest step") for place in places]

    def of(self, model: nn.Module, snapshots: list[Tensor]) -> Floats:
        """A row for each name, a column for each canary."""
        end = _flat(model).to(self._start)
        if end.shape != self._start.shape:
            raise BadSetting(f"the trained model has {len(end)} weights, the audit's has {len(self._start)}")
        # What is done to the model after the last step belongs to it.
        states = torch.stack([self._start, *(each.to(self._start) for each in snapshots[:-1]), end])
        moved = -states.diff(dim=0).T
        steps = torch.stack([direction @ moved for direction in self._directions])
        return torch.cat((steps.sum(2), steps.amax(2))).double().numpy()


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the parameters after each step that an optimizer of theirs takes."""
    snapshots: list[Tensor] = []
    own = {id(parameter) for parameter in model.parameters()}
    handle = register_optimizer_step_post_hook(_snapshot_into(snapshots, model, own))
    try:
        yield snapshots
    finally:
        handle.remove()


def _snapshot_into(
    snapshots: list[Tensor], model: nn.Module, own: set[int]
) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
    def after_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            snapshots.append(_flat(model))

    return after_step


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def _per_canary(model: nn.Module, task: AuditTask) -> Tensor:
    """A row for each canary: its gradient over all parameters."""
    parameters = list(model.parameters())
    rows = []
    for one, label in zip(*task.canary_batch(), strict=True):
        parts = torch.autograd.grad(cross_entropy(model(one[None]), label[None]), parameters)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def _offsets(parts: tuple[Tensor, ...]) -> list[int]:
    widths = [part.shape[1] for part in parts]
    return [sum(widths[:place]) for place in range(len(widths))]
