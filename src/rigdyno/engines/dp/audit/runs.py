"""The runs of an audit: each trains the same network from the same start, with each canary in or out by a coin."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rigdyno.engines.dp.audit.task import AuditTask
from rigdyno.engines.dp.audit.watch import Floats, Traces, watched
from rigdyno.engines.dp.errors import BadSetting

Train = Callable[[nn.Module, TensorDataset, int], object]

SEEDS = 2**32  # what every generator of random numbers takes
RUNS_TO_MOVE = 20  # an engine that hasn't changed a weight by then trains something else


class Run(NamedTuple):
    included: NDArray[np.bool_]  # of each canary
    scores: Floats  # a row for each trace, a column for each canary; larger is likelier to be in


def audit_runs(train: Train, task: AuditTask, traces: Traces, runs: int, seed: int) -> Iterator[Run]:
    """The coins are the auditor's own, and independent: neither the engine nor an earlier run knows them."""
    coins, moved = np.random.default_rng([seed, 1]), False
    for number, run_seed in enumerate(random.Random(seed).sample(range(SEEDS), runs), 1):
        included = coins.random(task.canaries) < 0.5
        scores = _scores(train, task, traces, torch.from_numpy(included), run_seed)
        moved = moved or bool(scores.any())
        _check(scores, number, moved, last=number == runs)
        yield Run(included, scores)


def _scores(train: Train, task: AuditTask, traces: Traces, included: Tensor, seed: int) -> Floats:
    model = task.model()
    with watched(model) as snapshots:
        trained = _trained(train, model, task.dataset(included), seed)
    return traces.of(trained, snapshots)


def _trained(train: Train, model: nn.Module, dataset: TensorDataset, seed: int) -> nn.Module:
    try:
        answer = train(model, dataset, seed)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise BadSetting(f"the audited engine failed: {type(error).__name__}: {first_line}") from error
    return answer if isinstance(answer, nn.Module) else model


def _check(scores: Floats, number: int, moved: bool, last: bool) -> None:
    if not np.isfinite(scores).all():
        raise BadSetting(f"run {number} of the audit left weights that aren't finite; try a smaller learning rate")
    if not moved and (last or number == RUNS_TO_MOVE):
        raise BadSetting("the audited engine left the model as it was; it should train it in place, or return it")
