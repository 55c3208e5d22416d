"""Where the layers of one network report to: finds the pass that a layer works for, and forms the clipped sum.

    sum = sum over samples of min(1, C / |g_i|) g_i

The weights are known when the last layer has told its norms, which is when a pass ends: layers hold what they need
until then, and nothing is computed twice. The sum stays hidden here until a step has given it noise.
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

from rigdyno.engines.dp.bounds import Bound
from rigdyno.engines.dp.contributions import Contribution
from rigdyno.engines.dp.errors import NotFinite, Unprotected
from rigdyno.engines.dp.gradients import Gradients
from rigdyno.engines.dp.norms import KernelNorms, Norms, TorchNorms
from rigdyno.engines.dp.passes import NO_TASK, Pass, Uses, current_task
from rigdyno.engines.dp.tray import Claim, Tray


class _Here(threading.local):
    """What one thread is in the middle of."""

    def __init__(self) -> None:
        self.calls: list[Pass | None] = []  # of the network that have begun; None: without gradients
        self.loose: dict[int, Pass] = {}  # by their number of samples: of layers that are called past the network


class Clipping:
    """Of one network, or of parts of it that are called one by one."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        bound: Bound,
        kernels: bool = False,
        ranks: int = 1,
        tray: Tray | None = None,
    ) -> None:
        trained = [parameter for _, parameter in named]
        self._named = list(named)
        self.bound, self.kernels = bound, kernels
        bound.prepare(named)
        self.private = bound.norm is not None
        self.gradients = Gradients(named, hidden=self.private)
        # Gives layers a backward pass though neither their input nor their parameters ask autograd for one.
        self.anchor = torch.zeros((), device=trained[0].device, requires_grad=True)
        self._anchored = get_gradient_edge(self.anchor).node
        self.norms: Norms = KernelNorms() if kernels else TorchNorms()
        self.changes = 0  # of the sum: a pass more, or all of them forgotten
        self._ranks, self._tray = ranks, tray
        self._here = _Here()
        self._running: list[Pass] = []
        self._one_at_a_time = threading.Lock()  # two threads' sums would lose parts of each other
        self._summed = 0
        self._failed = False
        self._stray: str | None = None
        self._watches = [parameter.register_post_accumulate_grad_hook(self._watch(name)) for name, parameter in named]

    def undo(self) -> None:
        for watch in self._watches:
            watch.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Clipping:
        """Of a copy of the network, for which no loader draws: it answers, and every backward pass is refused."""
        named = [(name, copy.deepcopy(parameter, memo)) for name, parameter in self._named]
        return Clipping(named, self.bound, self.kernels, self._ranks, Tray())

    # Forward

    def enter(self) -> None:
        """The network's own forward begins; `leave` follows, whatever happens in between."""
        self._here.calls.append(None)

    def join(self, samples: int, inputs: Iterable[object]) -> None:
        """With gradients. A call from within another, or one that a checkpoint repeats, is no new pass."""
        self._here.calls[-1] = self._called() or self._repeated() or self._new(samples, self._look(samples, inputs))

    def leave(self, answers: list[Any]) -> None:
        passing = self._here.calls.pop()
        if self.private and passing is not None and self._called() is None:
            passing.leave_by(answers)

    @contextmanager
    def watched_by(self, passing: Pass) -> Iterator[None]:
        """All layers report to this pass meanwhile."""
        self._here.calls.append(passing)
        try:
            yield
        finally:
            self._here.calls.pop()

    def waiting(self) -> list[Tensor]:
        """The tensors of the batches that were drawn and aren't used yet, as far as they still exist."""
        return [] if self._tray is None else self._tray.tensors()

    def passing(self, inputs: Tensor) -> Pass:
        """The pass that a layer is called in. Layers that are called past the network belong together until their
        backward, by their number of samples: apart, the same sample would be clipped once for each."""
        return self._called() or self._repeated() or self._loose(inputs)

    def _loose(self, inputs: Tensor) -> Pass:
        samples, claim = len(inputs), self._look(len(inputs), [inputs])
        found = self._here.loose.get(samples)
        if found is None or found.over or _of_two_batches(claim, found.claim):
            found = self._here.loose[samples] = self._new(samples, claim)
        return found

    def _called(self) -> Pass | None:
        for passing in reversed(self._here.calls):
            if passing is not None:
                return passing
        return None

    def _new(self, samples: int, claim: Claim | None) -> Pass:
        made = Pass(self, samples, claim)
        if not self.private:
            return made
        if current_task() == NO_TASK:
            self._fail_unended()
        else:  # in a reentrant checkpoint around the network: the backward pass that runs it again is the outer one
            made.start()
        return made

    def _look(self, samples: int, inputs: Iterable[object]) -> Claim | None:
        return None if self._tray is None else self._tray.look(inputs, samples)

    def _repeated(self) -> Pass | None:
        """The pass that a checkpoint runs a part of again, in the middle of its backward."""
        task = current_task() if self._running else NO_TASK
        if task == NO_TASK:
            return None
        found = [passing for passing in self._running if passing.task == task] or self._running
        if len(found) > 1:
            raise Unprotected("checkpoints are run again for two forward passes at once: call backward for each")
        return found[0]

    # Backward

    def wanted(self) -> bool:
        """Not in torch.autograd.grad(loss, inputs) and its like, which leave the parameters' gradients alone."""
        return bool(torch._C._will_engine_execute_node(self._anchored))

    def add_plain(self, parameter: Any, contribution: Contribution) -> None:
        self.gradients.add(parameter, contribution, None)

    def started(self, passing: Pass) -> None:
        self._running.append(passing)

    def ended(self, passing: Pass) -> None:
        if passing not in self._running:
            return  # it was given up before
        self._running.remove(passing)
        if passing.reported:
            with self._one_at_a_time:
                before, self._failed = self._failed, True  # unless all of it succeeds
                self._sum(passing)
                self._failed = before

    def _sum(self, passing: Pass) -> None:
        uses = list(passing.uses.values())
        passing.drop()
        self._refuse(self._stray)
        self.gradients.ready()
        together = [use.together(self.norms) for use in uses]
        weights = self._weights(uses, [squared for _, squared in together], passing.samples)
        if self._tray is not None:
            self._tray.accept(passing.samples, passing.claim)
        self._summed += passing.samples
        self.changes += 1
        for use, (contribution, _), own in zip(uses, together, weights, strict=True):
            self.gradients.add(use.parameter, contribution, own)

    def _weights(self, uses: list[Uses], squared: list[Tensor], samples: int) -> list[Tensor]:
        if not squared:
            return []
        total = torch.stack(squared).sum(dim=0)
        finite = torch.isfinite(total)
        if not bool(finite.all()):
            count = int((~finite).sum())
            raise NotFinite(
                f"{count} of {len(total)} samples have a gradient that is not finite, so no bound holds for them: "
                "look for NaN in the data, or lower the learning rate"
            )
        parameters, together = [use.parameter for use in uses], (self._summed + samples) * self._ranks
        found = self.bound.weights(parameters, squared, together)
        dtype = self.gradients.dtype
        distinct = {id(weights): weights.to(dtype) for weights in {id(each): each for each in found}.values()}
        return [distinct[id(weights)] for weights in found]

    # Between backward and step

    def refuse_unfit(self) -> None:
        """Before a step: whatever the sum and the gradients may hold that isn't clipped, or is half of something."""
        self._fail_unended()
        self._refuse(self._stray or self.gradients.set_by_others())
        if any(passing.reported for passing in self._running):
            raise Unprotected("a backward pass is still running in another thread: wait for it before step()")
        if self._failed:
            raise Unprotected(
                "a backward pass ended in an error, so the sum may lack a part of it: call zero_grad() and go on with "
                "this batch from the beginning, or with the next one"
            )

    @property
    def under_way(self) -> bool:
        """Whether something was summed that no step has released."""
        return self._summed > 0

    def refuse_arrived(self) -> None:
        """Within a step, whose optimizer may set gradients itself, but not by way of autograd."""
        self._refuse(self._stray)

    def take(self) -> Tensor:
        """The whole sum, flat, for noise; from here on the next one is formed."""
        self._summed = 0
        return self.gradients.complete()

    def forget(self) -> None:
        """By zero_grad(): all that came since the last step."""
        for passing in self._running:
            passing.drop()
        self._running = []
        self._summed, self._failed, self._stray = 0, False, None
        self.bound.forget()
        self.changes += 1
        self.gradients.clear()
        if self._tray is not None:
            self._tray.try_again()

    def _fail_unended(self) -> None:
        """Of this thread, which is in no backward pass now: so theirs broke off."""
        mine = [passing for passing in self._running if passing.thread == threading.get_ident()]
        for passing in mine:
            passing.drop()
            self._running.remove(passing)
        self._failed = self._failed or any(passing.reported for passing in mine)

    def _refuse(self, stray: str | None) -> None:
        if stray is not None:
            raise Unprotected(
                f"a gradient reached {stray} outside of its layer, where it can't be clipped per sample: "
                "put penalties into the optimizer (weight_decay), and bare parameters into a module of their own; "
                "zero_grad() forgets it"
            )

    def _watch(self, name: str) -> Any:
        def arrived(parameter: Tensor) -> None:
            if self.private:
                self._stray = name

        return arrived


def _of_two_batches(one: Claim | None, other: Claim | None) -> bool:
    slots = [claim.slot for claim in (one, other) if claim is not None and claim.slot is not None]
    return len(slots) == 2 and slots[0] is not slots[1]
