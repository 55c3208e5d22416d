"""The runs of an audit: each trains the same small network from the same start, with each canary in or out by a coin.

Each canary has its own input feature and, with two layers, its own hidden unit, so the canaries' gradients are
orthogonal. At the start the network assigns each canary to a wrong class with great confidence. So a canary's gradient
has the same direction in each step and is far above any sensible clipping norm: once clipped, it is exactly as long as
the clipping norm, which is the most that one sample may contribute. A canary that is left out is replaced by a sample
of zeros, whose gradient is exactly zero. So the number of samples stays the same, and with it the sample rate.

The auditor reads only what an engine releases: the parameters after each step, if the engine uses a torch optimizer on
the model's own parameters, else the parameters at the end. It reads no gradients and no state of the engine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

from rigdyno.engines.dp.errors import BadSetting

Floats = NDArray[np.float64]

Train = Callable[[nn.Module, TensorDataset, int], object]

# The canaries' weights at the start. Training should add less than this to them (about learning rate * clipping norm *
# steps / batch size). A single step should be well above the resolution of float32 at this size, 5e-7.
FIRM = 4.0

WRONG_CLASS, LABEL, CLASSES = 0, 1, 2

SEEDS = 2**32  # the range of seeds that every random generator accepts

RUNS_TO_MOVE = 20  # an engine that hasn't changed any weight by then doesn't train this model


@dataclass(frozen=True, kw_only=True)
class AuditTask:
    """The model and the canaries of an audit. Subclasses may define their own."""

    canaries: int = 32
    layers: int = 2  # two also detect a layer without noise; the first of two has canaries x canaries weights
    canary_size: float = 200.0  # value of a canary's feature; its gradient is longer than that

    def __post_init__(self) -> None:
        if isinstance(self.canaries, bool) or not isinstance(self.canaries, int) or self.canaries < 1:
            raise BadSetting(f"an audit's canaries must be a positive whole number, not {self.canaries!r}")
        if self.layers not in (1, 2):
            raise BadSetting(f"an audit's layers must be 1 or 2, not {self.layers!r}")
        if not 2 <= self.canary_size < math.inf:
            raise BadSetting(f"an audit's canary_size must be 2 or more, not {self.canary_size!r}")

    @property
    def samples(self) -> int:
        """Number of samples of the dataset, for the sample rate. It doesn't depend on which canaries are in."""
        return self.canaries

    def model(self) -> nn.Module:
        """Return the untrained model, the same for each run.

        Runs differ only in the engine's randomness, and in which canaries are in.
        """
        last = nn.Linear(self.canaries, CLASSES, bias=False)
        with torch.no_grad():
            last.weight[WRONG_CLASS], last.weight[LABEL] = FIRM, -FIRM
        return nn.Sequential(last) if self.layers == 1 else nn.Sequential(self._make_first_layer(), nn.ReLU(), last)

    def _make_first_layer(self) -> nn.Linear:
        """Return a layer with one unit for each canary, which stays off for all other canaries despite the noise."""
        layer = nn.Linear(self.canaries, self.canaries, bias=False)
        with torch.no_grad():
            layer.weight.copy_(FIRM * (2 * torch.eye(self.canaries) - 1))
        return layer

    def canary_batch(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of all canaries, one per row."""
        return self.canary_size * torch.eye(self.canaries), torch.full((self.canaries,), LABEL)

    def dataset(self, included: Tensor) -> TensorDataset:
        """Return the dataset with the canaries that are marked in `included`."""
        inputs, labels = self.canary_batch()
        kept = included.reshape(-1, *[1] * (inputs.ndim - 1))
        return TensorDataset(torch.where(kept, inputs, torch.zeros_like(inputs)), labels)


class Traces:
    """Scores how far the parameters moved against each canary's initial gradient.

    There are traces for each parameter by itself, since an engine may leave one unprotected, and for all together: each
    once as the sum over all steps, and once as the largest single step.
    """

    def __init__(self, task: AuditTask) -> None:
        named = dict((model := task.model()).named_parameters())
        self._start = _flatten_parameters(model)
        gradients = _canary_gradients(model, task)
        parts = gradients.split([parameter.numel() for parameter in named.values()], dim=1)
        part_names = [*named, "all parameters"] if len(named) > 1 else ["all parameters"]
        own = [nn.functional.pad(part, (before, 0)) for part, before in zip(parts, _find_offsets(parts), strict=True)]
        own = [nn.functional.pad(each, (0, gradients.shape[1] - each.shape[1])) for each in own]
        directions = [*own, gradients] if len(named) > 1 else [gradients]
        self._directions = [nn.functional.normalize(each, dim=1) for each in directions]
        self.names = [f"a canary's {kind} in {part}" for kind in ("trace", "largest step") for part in part_names]

    def score(self, model: nn.Module, snapshots: list[Tensor]) -> Floats:
        """Return the scores: a row for each name, a column for each canary."""
        end = _flatten_parameters(model).to(self._start)
        if end.shape != self._start.shape:
            raise BadSetting(f"the trained model has {len(end)} weights, the audit's has {len(self._start)}")
        # Changes to the model after the last step count as part of that step.
        states = torch.stack([self._start, *(each.to(self._start) for each in snapshots[:-1]), end])
        moved = -states.diff(dim=0).T
        steps = torch.stack([direction @ moved for direction in self._directions])
        return torch.cat((steps.sum(2), steps.amax(2))).double().numpy()


@contextmanager
def record_releases(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the parameters after each step of any optimizer that holds some of them."""
    snapshots: list[Tensor] = []
    own = {id(parameter) for parameter in model.parameters()}
    handle = register_optimizer_step_post_hook(_make_snapshot_hook(snapshots, model, own))
    try:
        yield snapshots
    finally:
        handle.remove()


def _make_snapshot_hook(
    snapshots: list[Tensor], model: nn.Module, own: set[int]
) -> Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]:
    def after_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            snapshots.append(_flatten_parameters(model))

    return after_step


def _flatten_parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def _canary_gradients(model: nn.Module, task: AuditTask) -> Tensor:
    """Return a row for each canary: its gradient over all parameters."""
    parameters = list(model.parameters())
    rows = []
    for one, label in zip(*task.canary_batch(), strict=True):
        parts = torch.autograd.grad(cross_entropy(model(one[None]), label[None]), parameters)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def _find_offsets(parts: tuple[Tensor, ...]) -> list[int]:
    widths = [part.shape[1] for part in parts]
    return [sum(widths[:number]) for number in range(len(widths))]


class AuditRun(NamedTuple):
    included: NDArray[np.bool_]  # for each canary
    scores: Floats  # a row for each trace, a column for each canary; a larger score makes "in" more likely


def iterate_runs(train: Train, task: AuditTask, traces: Traces, runs: int, seed: int) -> Iterator[AuditRun]:
    """Train `runs` times, with canaries chosen by the auditor's own independent coins, and yield the scores.

    Neither the engine nor an earlier run knows the coins.
    """
    coins, moved = np.random.default_rng([seed, 1]), False
    for number, run_seed in enumerate(random.Random(seed).sample(range(SEEDS), runs), 1):
        included = coins.random(task.canaries) < 0.5
        scores = _score_run(train, task, traces, torch.from_numpy(included), run_seed)
        moved = moved or bool(scores.any())
        _check_scores(scores, number, moved, last=number == runs)
        yield AuditRun(included, scores)


def _score_run(train: Train, task: AuditTask, traces: Traces, included: Tensor, seed: int) -> Floats:
    model = task.model()
    with record_releases(model) as snapshots:
        trained = _train_model(train, model, task.dataset(included), seed)
    return traces.score(trained, snapshots)


def _train_model(train: Train, model: nn.Module, dataset: TensorDataset, seed: int) -> nn.Module:
    try:
        result = train(model, dataset, seed)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise BadSetting(f"the audited engine failed: {type(error).__name__}: {first_line}") from error
    return result if isinstance(result, nn.Module) else model


def _check_scores(scores: Floats, number: int, moved: bool, last: bool) -> None:
    if not np.isfinite(scores).all():
        raise BadSetting(f"run {number} of the audit left weights that aren't finite; try a smaller learning rate")
    if not moved and (last or number == RUNS_TO_MOVE):
        raise BadSetting("the audited engine left the model as it was; it should train it in place, or return it")
