"""What an audit trains: a small network, and canaries that leave the clearest trace they can.

Each canary owns one input feature and, with two layers, one hidden unit that no other canary touches: their gradients
are orthogonal. The network begins by holding each of them, very firmly, for another class than its label. So a canary's
gradient points the same way in each step and is far above any sensible clipping bound: once clipped, it is exactly as
long as the bound, which is the most that one sample may contribute.

A canary that is left out is replaced by a sample of zeros, whose gradient is exactly zero. The number of samples stays
the same, and with it the sampling rate that the accounting is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rigdyno.engines.dp.errors import BadSetting

# The canaries' weights at the start. All that training adds to them, about the learning rate times the bound times the
# steps over the batch, should stay below; a single step should be well above what float32 can tell apart here, 5e-7.
FIRM = 4.0
WRONG_CLASS, LABEL, CLASSES = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class AuditTask:
    """The sizes that an engine's accounting asks for. Subclasses may bring their own model and canaries."""

    canaries: int = 32
    layers: int = 2  # with two, a layer that gets no noise is seen; the first of two has canaries x canaries weights
    canary_size: float = 200.0  # the value of its feature; its gradient is longer than that

    def __post_init__(self) -> None:
        if isinstance(self.canaries, bool) or not isinstance(self.canaries, int) or self.canaries < 1:
            raise BadSetting(f"an audit's canaries must be a whole number from 1 on, not {self.canaries!r}")
        if self.layers not in (1, 2):
            raise BadSetting(f"an audit's layers must be 1 or 2, not {self.layers!r}")
        if not 2 <= self.canary_size < math.inf:
            raise BadSetting(f"an audit's canary_size must be 2 or more, not {self.canary_size!r}")

    @property
    def samples(self) -> int:
        """Of the data set, whatever canaries are in it: for the sampling rate."""
        return self.canaries

    def model(self) -> nn.Module:
        """The same each time: what differs between runs is the engine's randomness, and which canaries are in."""
        last = nn.Linear(self.canaries, CLASSES, bias=False)
        with torch.no_grad():
            last.weight[WRONG_CLASS], last.weight[LABEL] = FIRM, -FIRM
        return nn.Sequential(last) if self.layers == 1 else nn.Sequential(self._first(), nn.ReLU(), last)

    def _first(self) -> nn.Linear:
        """A unit for each canary, that stays off for all others whatever the noise."""
        layer = nn.Linear(self.canaries, self.canaries, bias=False)
        with torch.no_grad():
            layer.weight.copy_(FIRM * (2 * torch.eye(self.canaries) - 1))
        return layer

    def canary_batch(self) -> tuple[Tensor, Tensor]:
        """All canaries, a row each."""
        return self.canary_size * torch.eye(self.canaries), torch.full((self.canaries,), LABEL)

    def dataset(self, included: Tensor) -> TensorDataset:
        """`included` says of each canary whether it is in."""
        inputs, labels = self.canary_batch()
        kept = included.reshape(-1, *[1] * (inputs.ndim - 1))
        return TensorDataset(torch.where(kept, inputs, torch.zeros_like(inputs)), labels)
