"""What an audit trains: a small network, some ordinary samples, and one that leaves the clearest trace it can.

The canary owns one input feature and one hidden unit that no other sample touches. The network begins by holding it,
very firmly, for another class than its label: so its gradient points the same way in each step, is far above any
sensible clipping bound, and would dominate the mean of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rigdyno.engines.dp.errors import BadSetting

# The canary's weights at the start. All that training adds to them, about the learning rate times the bound times the
# steps over the batch, should stay below; a single step should be well above what float32 can tell apart here, 5e-7.
FIRM = 4.0
WRONG_CLASS, LABEL = 0, 1


@dataclass(frozen=True, kw_only=True)
class AuditTask:
    """The sizes that an engine's accounting asks for. Subclasses may bring their own model, data and canary."""

    samples: int = 100  # without the canary
    features: int = 8  # the last one is the canary's
    hidden: int = 8  # the last one is the canary's
    classes: int = 2
    canary_size: float = 200.0  # the value of its feature; its gradient is ten times as long

    def __post_init__(self) -> None:
        fewest = {"samples": 1, "features": 2, "hidden": 2, "classes": 2, "canary_size": 2}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in fewest and not fewest[field.name] <= value < math.inf:
                raise BadSetting(f"an audit's {field.name} must be {fewest[field.name]} or more, not {value}")

    def model(self) -> nn.Module:
        """The same each time: what differs between runs is the engine's randomness alone."""
        first, second = nn.Linear(self.features, self.hidden), nn.Linear(self.hidden, self.classes)
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for layer in (first, second):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=random) / math.sqrt(layer.in_features))
                layer.bias.zero_()
            _give_to_canary(first, second)
        return nn.Sequential(first, nn.ReLU(), second)

    def dataset(self, with_canary: bool) -> TensorDataset:
        """One sample more with the canary than without."""
        random = torch.Generator().manual_seed(1)
        inputs = torch.randn(self.samples, self.features, generator=random)
        inputs[:, -1] = 0
        labels = torch.randint(self.classes, (self.samples,), generator=random)
        if with_canary:
            canary, label = self.canary()
            inputs, labels = torch.cat((inputs, canary)), torch.cat((labels, label))
        return TensorDataset(inputs, labels)

    def canary(self) -> tuple[Tensor, Tensor]:
        """A batch of one."""
        inputs = torch.zeros(1, self.features)
        inputs[0, -1] = self.canary_size
        return inputs, torch.tensor([LABEL])


def _give_to_canary(first: nn.Linear, second: nn.Linear) -> None:
    first.weight[:, -1] = 0
    first.weight[-1, :] = 0
    first.weight[-1, -1] = FIRM
    first.bias[-1] = -FIRM  # keeps the unit off for all others, whatever the noise
    second.weight[:, -1] = 0
    second.weight[WRONG_CLASS, -1], second.weight[LABEL, -1] = FIRM, -FIRM
