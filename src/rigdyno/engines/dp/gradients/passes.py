"""One pass through the network: forward and backward.

All results of a pass are stored in it, not in the engine. So passes may be begun, kept, dropped and run in any order,
independently of each other.

    forward             each layer's autograd function keeps the pass that it belongs to
    backward            it reports to that pass what it adds to every sample's gradient
    end of backward     (the outermost one) every sample gets its weight, and the weighted sum is computed
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Variable

from rigdyno.engines.dp.batches.pending import Claim
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.gradients.contributions import Contribution, Norms, sum_contributions

if TYPE_CHECKING:
    from rigdyno.engines.dp.gradients.clipping import Clipping

NO_TASK = -1  # outside of any backward pass


@dataclass
class ParameterUses:
    """All contributions to the gradient of one parameter in one pass."""

    parameter: Tensor
    contributions: list[Contribution]
    squared: Tensor

    def combine(self, norms: Norms) -> tuple[Contribution, Tensor]:
        """Return the sum of the contributions, and its squared norms."""
        if len(self.contributions) == 1:
            return self.contributions[0], self.squared
        whole = sum_contributions(self.contributions)
        return whole, whole.squared_norms(norms)


class Pass:
    """One pass. It can be run backwards once: a second backward would be clipped separately, and count again."""

    def __init__(self, clipping: Clipping, samples: int, claim: Claim | None) -> None:
        self.samples, self.claim = samples, claim
        self.thread = threading.get_ident()
        self.task = NO_TASK
        self.reported = self.over = False
        self.uses: dict[int, ParameterUses] = {}
        self._clipping = clipping

    def check_samples(self, rows: int, layer: str) -> None:
        if rows != self.samples:
            raise MixesSamples(
                f"{layer} got {rows} rows where the batch has {self.samples} samples: "
                "the first axis must remain that of the samples"
            )

    def watch_outputs(self, outputs: list[Any]) -> None:
        """Start the pass when backward reaches one of its outputs.

        That is the outermost backward; a nested one, run by a reentrant checkpoint, ends too early.
        """
        for output in outputs:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(self._note_backward)

    def _note_backward(self, gradient: Tensor) -> None:
        if torch.is_grad_enabled():
            raise Unprotected(
                "create_graph=True asks for second derivatives (a gradient penalty, Hessians), but private layers have "
                "none: leave the penalty out, or bound the network's slope by its weights"
            )
        self.start()

    def start(self) -> None:
        if self.task == NO_TASK and not self.over:
            self.task = current_task()
            self._clipping.note_started(self)
            Variable._execution_engine.queue_callback(self._end)

    def add(self, parameter: Any, contribution: Contribution) -> None:
        """Add what one use of a parameter contributes to its per-sample gradients. Called during backward only."""
        if not self._clipping.wants_gradients():
            return
        if not self._clipping.private:
            if self.samples:
                self._clipping.add_plain(parameter, contribution)
            return
        self._check_first_backward()
        self.start()
        self.reported = True
        if self.samples == 0:
            return
        known = self.uses.get(id(parameter))
        if known is None:
            squared = contribution.squared_norms(self._clipping.norms)
            self.uses[id(parameter)] = ParameterUses(parameter, [contribution], squared)
        else:
            known.contributions.append(contribution)

    def drop(self) -> None:
        """End this pass without adding it to the sum."""
        self.over = True
        self.uses = {}

    def _check_first_backward(self) -> None:
        if self.over:
            raise Unprotected(
                "backward came a second time through one forward pass, so its samples would count twice: add up the "
                "losses and call backward once, or call the network again"
            )

    def _end(self) -> None:
        self.task = NO_TASK
        self._clipping.finish_pass(self)


def current_task() -> int:
    """Return the number of the backward pass that this thread is in; NO_TASK if there is none."""
    return int(torch._C._current_graph_task_id())
