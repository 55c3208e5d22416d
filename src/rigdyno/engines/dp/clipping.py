"""One backward pass: every layer tells what it adds to each sample's gradient, then every sample is weighed once.

    p.grad = sum over samples of min(1, C / |g_i|) g_i

The weights are known when the last layer has told its norms, which is when the pass ends: layers hold what they need
until then, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn import functional

from rigdyno.engines.dp.contributions import Contribution, summed
from rigdyno.engines.dp.errors import MixesSamples, NotFinite, Unprotected
from rigdyno.engines.dp.gradients import Gradients
from rigdyno.engines.dp.norms import KernelNorms, Norms, TorchNorms

# A float32 sum over a batch is rounded, and a neighbouring batch is rounded otherwise: so much is left free below C.
MARGIN = 1e-5
MARGIN_A_SAMPLE = 2.0**-22

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Bound:
    """No sample's gradient is longer than the norm after clipping; no norm: plain training by the same kernels."""

    norm: float | None
    reduction: Reduction = "mean"

    def weights(self, squared: Tensor, together: int) -> Tensor:
        """By which each sample's gradient, as backward found it, enters the sum of so many; in float64."""
        assert self.norm is not None
        scale = len(squared) if self.reduction == "mean" else 1
        allowed = self.norm * (1.0 - MARGIN - MARGIN_A_SAMPLE * together)
        weights = (allowed / (squared.sqrt() * scale)).clamp_(max=1.0) * scale
        # Below the normal range float32 has few digits, and would round a weight up by as much as a half.
        return functional.threshold(weights, torch.finfo(torch.float32).tiny, 0.0)


@dataclass
class _Uses:
    """Of one parameter in one pass."""

    parameter: Tensor
    contributions: list[Contribution]
    squared: Tensor

    def together(self, norms: Norms) -> tuple[Contribution, Tensor]:
        if len(self.contributions) == 1:
            return self.contributions[0], self.squared
        whole = summed(self.contributions)
        return whole, whole.squared_norms(norms)


class Clipping:
    """Where the layers of one network report to."""

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], bound: Bound, kernels: bool = False, ranks: int = 1
    ) -> None:
        trained = [parameter for _, parameter in named]
        self.gradients = Gradients(trained)
        self.bound, self.kernels = bound, kernels
        # Gives layers a backward pass though neither their input nor their parameters ask autograd for one.
        self.anchor = torch.zeros((), device=trained[0].device, requires_grad=True)
        self.batch = 0
        self.seen = 0
        self._ranks = ranks
        self._norms: Norms = KernelNorms() if kernels else TorchNorms()
        self._uses: dict[int, _Uses] = {}
        self._under_way = False
        self._stray: str | None = None
        self._watches = [parameter.register_hook(self._watch(name)) for name, parameter in named]

    def undo(self) -> None:
        for watch in self._watches:
            watch.remove()

    @property
    def private(self) -> bool:
        return self.bound.norm is not None

    def expect(self, samples: int) -> None:
        """A forward pass over so many samples begins; whatever a pass that failed has left is gone."""
        self.batch, self._under_way, self._stray = samples, False, None
        self._uses.clear()

    def check_samples(self, values: Tensor, layer: str) -> None:
        if len(values) != self.batch:
            raise MixesSamples(
                f"{layer} got {len(values)} rows where the batch has {self.batch} samples: "
                "the first axis must stay that of the samples"
            )

    def add(self, parameter: Any, contribution: Contribution) -> None:
        """During backward only."""
        if not self._under_way:
            self._under_way = True
            Variable._execution_engine.queue_callback(self._finish)
        if self.batch == 0:
            return
        if not self.private:
            self.gradients.add(parameter, contribution, None)
        elif id(parameter) in self._uses:
            self._uses[id(parameter)].contributions.append(contribution)
        else:
            self._uses[id(parameter)] = _Uses(parameter, [contribution], contribution.squared_norms(self._norms))

    def refuse_stray(self) -> None:
        name, self._stray = self._stray, None
        if name is not None:
            raise Unprotected(
                f"a gradient reached {name} outside of its layer, where it can't be clipped per sample: "
                "put penalties into the optimizer (weight_decay), and bare parameters into a module of their own"
            )

    def _finish(self) -> None:
        uses, self._uses, self._under_way = list(self._uses.values()), {}, False
        self.refuse_stray()
        self.seen += self.batch
        if uses:
            self._weigh(uses)

    def _weigh(self, uses: list[_Uses]) -> None:
        together = [use.together(self._norms) for use in uses]
        weights = self._weights(torch.stack([squared for _, squared in together]).sum(dim=0))
        weights = weights.to(self.gradients.flat.dtype)
        for use, (contribution, _) in zip(uses, together, strict=True):
            self.gradients.add(use.parameter, contribution, weights)

    def _weights(self, squared: Tensor) -> Tensor:
        finite = torch.isfinite(squared)
        if not bool(finite.all()):
            count = int((~finite).sum())
            raise NotFinite(
                f"{count} of {len(squared)} samples have a gradient that is not finite, so no bound holds for them: "
                "look for NaN in the data, or lower the learning rate"
            )
        return self.bound.weights(squared, self.seen * self._ranks)

    def _watch(self, name: str) -> Callable[[Tensor | None], None]:
        def arrived(gradient: Tensor | None) -> None:
            if gradient is not None:
                self._stray = name

        return arrived
