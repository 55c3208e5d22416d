"""The runs of an audit: each trains the same network from the same start, and leaves one row of figures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.utils.data import TensorDataset

from rigdyno.engines.dp.audit.clopper_pearson import Floats
from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.errors import BadSetting

Train = Callable[[nn.Module, TensorDataset, int], object]
Progress = Callable[[int, int], None]

SEEDS = 2**32  # what every generator of random numbers takes
RUNS_TO_MOVE = 20  # an engine that hasn't changed a weight by then trains something else


class Trace:
    """How far the weights moved against the canary's gradient at the start: in each parameter, since an engine may
    forget one, and in all together."""

    def __init__(self, task: AuditTask) -> None:
        model = task.model()
        named = dict(model.named_parameters())
        inputs, labels = task.canary()
        gradients = torch.autograd.grad(cross_entropy(model(inputs), labels), list(named.values()))
        self.names = [*named, "all parameters"]
        self._start = parameters_to_vector(named.values()).detach()
        self._directions = _directions(gradients)

    def of(self, model: nn.Module) -> list[float]:
        weights = torch.cat([parameter.detach().flatten().to(self._start) for parameter in model.parameters()])
        if weights.shape != self._start.shape:
            raise BadSetting(f"the trained model has {len(weights)} weights, the audit's has {len(self._start)}")
        moved: list[float] = (-self._directions @ (weights - self._start)).tolist()
        return moved


def _directions(gradients: tuple[Tensor, ...]) -> Tensor:
    """A row of length one for each parameter, that is zero elsewhere, and one for all."""
    everything = parameters_to_vector(gradients)
    parameter = torch.arange(len(gradients)).repeat_interleave(torch.tensor([each.numel() for each in gradients]))
    own = parameter == torch.arange(len(gradients)).unsqueeze(1)
    rows = torch.cat((own * everything, everything.unsqueeze(0)))
    return nn.functional.normalize(rows, dim=1)


class Traces(NamedTuple):
    names: list[str]  # of the columns
    with_canary: Floats  # a row for each run
    without: Floats


def traces(train: Train, task: AuditTask, pairs: int, seed: int, progress: Progress | None = None) -> Traces:
    """With the canary and without in turns, so that nothing that changes in time tells them apart."""
    datasets = task.dataset(with_canary=True), task.dataset(with_canary=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trace = Trace(task)
        rows = np.zeros((2 * pairs, len(trace.names)))
        for run, run_seed in enumerate(random.Random(seed).sample(range(SEEDS), len(rows))):
            rows[run] = trace.of(_trained(train, task.model(), datasets[run % 2], run_seed))
            _check(rows[: run + 1])
            if progress is not None:
                progress(run + 1, len(rows))
    return Traces(trace.names, rows[::2], rows[1::2])


def _trained(train: Train, model: nn.Module, dataset: TensorDataset, seed: int) -> nn.Module:
    try:
        answer = train(model, dataset, seed)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise BadSetting(f"the audited engine failed: {type(error).__name__}: {first_line}") from error
    return answer if isinstance(answer, nn.Module) else model


def _check(rows: Floats) -> None:
    if not np.isfinite(rows[-1]).all():
        raise BadSetting(f"run {len(rows)} of the audit left weights that aren't finite; try a smaller learning rate")
    if len(rows) == RUNS_TO_MOVE and not rows.any():
        raise BadSetting("the audited engine left the model as it was; it should train it in place, or return it")
