"""Compute the clipped sum of per-sample gradients from what the layers of a network report.

    sum = sum over samples of min(1, C / |g_i|) g_i

The weights are known at the end of a pass, when the last layer has reported its norms. Layers keep what they need until
then, so nothing is computed twice. The sum stays hidden until a step has added noise to it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from rigdyno.engines.dp.batches.pending import Claim, PendingBatches
from rigdyno.engines.dp.errors import NotFinite, Unprotected
from rigdyno.engines.dp.gradients.buffer import Gradients
from rigdyno.engines.dp.gradients.contributions import Contribution, KernelNorms, Norms, TorchNorms
from rigdyno.engines.dp.gradients.norm_bounds import ClippingNorm
from rigdyno.engines.dp.gradients.passes import NO_TASK, ParameterUses, Pass, current_task


class _ThreadState(threading.local):
    """The passes of one thread."""

    def __init__(self) -> None:
        self.calls: list[Pass | None] = []  # open calls of the network; None: without gradients
        self.loose: dict[int, Pass] = {}  # by number of samples: passes of layers that are called directly


class Clipping:
    """Collects and clips the per-sample gradients of one network. Its parts may also be called one by one."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        bound: ClippingNorm,
        kernels: bool = False,
        ranks: int = 1,
        pending: PendingBatches | None = None,
    ) -> None:
        trained = [parameter for _, parameter in named]
        self._named = list(named)
        self.bound, self.kernels = bound, kernels
        bound.prepare(named)
        self.private = bound.norm is not None
        self.gradients = Gradients(named, hidden=self.private)
        # An input that makes autograd run the layers' backward, though their inputs and parameters may not need it.
        self.anchor = torch.zeros((), device=trained[0].device, requires_grad=True)
        self._anchored = get_gradient_edge(self.anchor).node
        self.norms: Norms = KernelNorms() if kernels else TorchNorms()
        self.changes = 0  # how often the sum was changed or discarded
        self._ranks, self._pending = ranks, pending
        self._state = _ThreadState()
        self._running: list[Pass] = []
        self._one_at_a_time = threading.Lock()  # two threads that add at once would lose parts of the sum
        self._summed = 0
        self._failed = False
        self._stray: str | None = None
        self._watches = [
            parameter.register_post_accumulate_grad_hook(self._make_watch(name)) for name, parameter in named
        ]

    def undo(self) -> None:
        for watch in self._watches:
            watch.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Clipping:
        """Return the clipping of a copied network. It has no loader, so every backward pass is refused."""
        named = [(name, copy.deepcopy(parameter, memo)) for name, parameter in self._named]
        return Clipping(named, self.bound, self.kernels, self._ranks, PendingBatches())

    # Forward

    def enter(self) -> None:
        """Note that the network's forward begins. `leave` must follow, even after an error."""
        self._state.calls.append(None)

    def begin_pass(self, samples: int, inputs: Iterable[object]) -> None:
        """Begin a pass with gradients, unless this call is nested in another one, or repeated by a checkpoint."""
        self._state.calls[-1] = (
            self._innermost_pass()
            or self._recomputed_pass()
            or self._start_pass(samples, self._identify_batch(samples, inputs))
        )

    def leave(self, outputs: list[Any]) -> None:
        current_pass = self._state.calls.pop()
        if self.private and current_pass is not None and self._innermost_pass() is None:
            current_pass.watch_outputs(outputs)

    @contextmanager
    def redirect_to(self, current_pass: Pass) -> Iterator[None]:
        """Make all layers report to this pass."""
        self._state.calls.append(current_pass)
        try:
            yield
        finally:
            self._state.calls.pop()

    def pending_tensors(self) -> list[Tensor]:
        """Return the tensors of the pending batches that still exist."""
        return [] if self._pending is None else self._pending.tensors()

    def find_pass(self, inputs: Tensor) -> Pass:
        """Return the pass of a layer's call.

        Layers that are called directly, not by the network, belong to one pass until their backward, if they have the
        same number of samples. In separate passes, a sample would be clipped once for each layer.
        """
        return self._innermost_pass() or self._recomputed_pass() or self._find_loose_pass(inputs)

    def _find_loose_pass(self, inputs: Tensor) -> Pass:
        samples, claim = len(inputs), self._identify_batch(len(inputs), [inputs])
        found = self._state.loose.get(samples)
        if found is None or found.over or _differ_in_batch(claim, found.claim):
            found = self._state.loose[samples] = self._start_pass(samples, claim)
        return found

    def _innermost_pass(self) -> Pass | None:
        return next((each for each in reversed(self._state.calls) if each is not None), None)

    def _start_pass(self, samples: int, claim: Claim | None) -> Pass:
        made = Pass(self, samples, claim)
        if not self.private:
            return made
        if current_task() == NO_TASK:
            self._drop_broken_passes()
        else:  # a reentrant checkpoint around the network runs it again, within the outermost backward pass
            made.start()
        return made

    def _identify_batch(self, samples: int, inputs: Iterable[object]) -> Claim | None:
        return None if self._pending is None else self._pending.identify(inputs, samples)

    def _recomputed_pass(self) -> Pass | None:
        """Return the pass of which a checkpoint runs a part again during backward; None if there is none."""
        task = current_task() if self._running else NO_TASK
        if task == NO_TASK:
            return None
        found = [each for each in self._running if each.task == task] or self._running
        if len(found) > 1:
            raise Unprotected("checkpoints are run again for two forward passes at once: call backward for each")
        return found[0]

    # Backward

    def wants_gradients(self) -> bool:
        """Return False in torch.autograd.grad(loss, inputs) and similar calls, which compute no parameter gradients."""
        return bool(torch._C._will_engine_execute_node(self._anchored))

    def add_plain(self, parameter: Any, contribution: Contribution) -> None:
        self.gradients.add(parameter, contribution, None)

    def note_started(self, current_pass: Pass) -> None:
        self._running.append(current_pass)

    def finish_pass(self, current_pass: Pass) -> None:
        if current_pass not in self._running:
            return  # it was dropped before
        self._running.remove(current_pass)
        if current_pass.reported:
            with self._one_at_a_time:
                before, self._failed = self._failed, True  # until everything has succeeded
                self._add_to_sum(current_pass)
                self._failed = before

    def _add_to_sum(self, current_pass: Pass) -> None:
        uses = list(current_pass.uses.values())
        current_pass.drop()
        self._check_stray(self._stray)
        self.gradients.prepare()
        together = [use.combine(self.norms) for use in uses]
        weights = self._compute_weights(uses, [squared for _, squared in together], current_pass.samples)
        if self._pending is not None:
            self._pending.accept(current_pass.samples, current_pass.claim)
        self._summed += current_pass.samples
        self.changes += 1
        for use, (contribution, _), own in zip(uses, together, weights, strict=True):
            self.gradients.add(use.parameter, contribution, own)

    def _compute_weights(self, uses: list[ParameterUses], squared: list[Tensor], samples: int) -> list[Tensor]:
        if not squared:
            return []
        total = torch.stack(squared).sum(dim=0)
        finite = torch.isfinite(total)
        if not bool(finite.all()):
            count = int((~finite).sum())
            raise NotFinite(
                f"{count} of {len(total)} samples have a gradient that is not finite, so it can't be clipped: "
                "look for NaN in the data, or lower the learning rate"
            )
        parameters, together = [use.parameter for use in uses], (self._summed + samples) * self._ranks
        found = self.bound.weights(parameters, squared, together)
        dtype = self.gradients.dtype
        distinct = {id(weights): weights.to(dtype) for weights in {id(each): each for each in found}.values()}
        return [distinct[id(weights)] for weights in found]

    # Between backward and step

    def check_before_step(self) -> None:
        """Raise Unprotected before a step if the sum or the gradients contain anything unclipped or incomplete."""
        self._drop_broken_passes()
        self._check_stray(self._stray or self.gradients.find_foreign_gradient())
        if any(each.reported for each in self._running):
            raise Unprotected("a backward pass is still running in another thread: wait for it before step()")
        if self._failed:
            raise Unprotected(
                "a backward pass ended in an error, so the sum may lack a part of it: call zero_grad() and repeat this "
                "batch from the beginning, or continue with the next one"
            )

    @property
    def has_unreleased_sum(self) -> bool:
        """True if the sum contains samples that no step has released."""
        return self._summed > 0

    def check_no_stray_gradient(self) -> None:
        """Raise Unprotected if autograd has set a gradient during a step. The optimizer itself may set gradients."""
        self._check_stray(self._stray)

    def take_sum(self) -> Tensor:
        """Return the whole sum, flat, for the noise. A new sum begins."""
        self._summed = 0
        return self.gradients.finish_sum()

    def discard_sum(self) -> None:
        """Discard everything since the last step, as zero_grad() does."""
        for each in self._running:
            each.drop()
        self._running = []
        self._summed, self._failed, self._stray = 0, False, None
        self.bound.discard_counts()
        self.changes += 1
        self.gradients.clear()
        if self._pending is not None:
            self._pending.restart_batch()

    def _drop_broken_passes(self) -> None:
        """Drop the running passes of this thread. It isn't in backward now, so they ended in an error."""
        mine = [each for each in self._running if each.thread == threading.get_ident()]
        for each in mine:
            each.drop()
            self._running.remove(each)
        self._failed = self._failed or any(each.reported for each in mine)

    def _check_stray(self, stray: str | None) -> None:
        if stray is not None:
            raise Unprotected(
                f"a gradient reached {stray} outside of its layer, where it can't be clipped per sample: "
                "put penalties into the optimizer (weight_decay), and bare parameters into a separate module; "
                "zero_grad() discards it"
            )

    def _make_watch(self, name: str) -> Any:
        def note_arrival(parameter: Tensor) -> None:
            if self.private:
                self._stray = name

        return note_arrival


def _differ_in_batch(one: Claim | None, other: Claim | None) -> bool:
    batches = [claim.batch for claim in (one, other) if claim is not None and claim.batch is not None]
    return len(batches) == 2 and batches[0] is not batches[1]
