"""One pass through the network, there and back. What it finds lives in it, never in the engine: passes may be begun,
kept, dropped and run in any order, and none of them touches another.

    forward     each layer's autograd function keeps the pass that it belongs to
    backward    it reports to that pass what it adds to every sample's gradient
    the end     of the outermost backward: every sample is weighed once, and the sum is formed
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Variable

from rigdyno.engines.dp.contributions import Contribution, summed
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.norms import Norms
from rigdyno.engines.dp.tray import Claim

if TYPE_CHECKING:
    from rigdyno.engines.dp.clipping import Clipping

NO_TASK = -1  # outside of any backward pass


@dataclass
class Uses:
    """Of one parameter in one pass."""

    parameter: Tensor
    contributions: list[Contribution]
    squared: Tensor

    def together(self, norms: Norms) -> tuple[Contribution, Tensor]:
        if len(self.contributions) == 1:
            return self.contributions[0], self.squared
        whole = summed(self.contributions)
        return whole, whole.squared_norms(norms)


class Pass:
    """Can be run backwards once: a second time, or a second loss, would be clipped by itself and count again."""

    def __init__(self, clipping: Clipping, samples: int, claim: Claim | None) -> None:
        self.samples, self.claim = samples, claim
        self.thread = threading.get_ident()
        self.task = NO_TASK
        self.reported = self.over = False
        self.uses: dict[int, Uses] = {}
        self._clipping = clipping

    def check_samples(self, rows: int, layer: str) -> None:
        if rows != self.samples:
            raise MixesSamples(
                f"{layer} got {rows} rows where the batch has {self.samples} samples: "
                "the first axis must stay that of the samples"
            )

    def leave_by(self, answers: list[Any]) -> None:
        """Whichever answer the backward pass comes through first, it is the outermost one that does: a reentrant
        checkpoint runs another inside it, which ends too early."""
        for answer in answers:
            if isinstance(answer, Tensor) and answer.requires_grad:
                answer.register_hook(self._came_back)

    def _came_back(self, gradient: Tensor) -> None:
        if torch.is_grad_enabled():
            raise Unprotected(
                "create_graph=True asks for second derivatives (a gradient penalty, Hessians), and private layers have "
                "none: leave the penalty out, or bound the network's slope by its weights"
            )
        self.start()

    def start(self) -> None:
        if self.task == NO_TASK and not self.over:
            self.task = current_task()
            self._clipping.started(self)
            Variable._execution_engine.queue_callback(self._end)

    def add(self, parameter: Any, contribution: Contribution) -> None:
        """During backward only."""
        if not self._clipping.wanted():
            return
        if not self._clipping.private:
            if self.samples:
                self._clipping.add_plain(parameter, contribution)
            return
        self._refuse_again()
        self.start()
        self.reported = True
        if self.samples == 0:
            return
        known = self.uses.get(id(parameter))
        if known is None:
            squared = contribution.squared_norms(self._clipping.norms)
            self.uses[id(parameter)] = Uses(parameter, [contribution], squared)
        else:
            known.contributions.append(contribution)

    def drop(self) -> None:
        """It will not be weighed, now or later."""
        self.over = True
        self.uses = {}

    def _refuse_again(self) -> None:
        if self.over:
            raise Unprotected(
                "backward came a second time through one forward pass, so its samples would count twice: add up the "
                "losses and call backward once, or call the network again"
            )

    def _end(self) -> None:
        self.task = NO_TASK
        self._clipping.ended(self)


def current_task() -> int:
    """The number of the backward pass that this thread is in."""
    return int(torch._C._current_graph_task_id())
