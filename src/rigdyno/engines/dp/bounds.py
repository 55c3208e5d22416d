"""How long a sample's gradient may be: all of it together, each parameter by itself, or a bound that follows the data.

flat       |g_i| <= C
per layer  |g_i of parameter l| <= C_l, so that |g_i| <= sqrt(sum of C_l^2)
adaptive   flat, and C goes to a quantile of the samples' norms, by a count that gets noise of its own
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rigdyno.engines.dp.errors import BadSetting

# A float32 sum over a batch is rounded, and a neighbouring batch is rounded otherwise: so much is left free below C.
MARGIN = 1e-5
MARGIN_A_SAMPLE = 2.0**-22

Reduction = Literal["mean", "sum"]
Named = Sequence[tuple[str, nn.Parameter]]


@dataclass
class Bound:
    """No sample's gradient is longer than the norm after clipping; no norm: plain training by the same kernels."""

    norm: float | None
    reduction: Reduction = "mean"

    def prepare(self, named: Named) -> None:
        """Before training, for these parameters."""

    def noise_std(self, noise_multiplier: float) -> float:
        assert self.norm is not None
        return noise_multiplier * self.norm

    def weights(self, parameters: Sequence[Tensor], squared: Sequence[Tensor], together: int) -> list[Tensor]:
        """By which each sample's gradient of each parameter, as backward found it, enters the sum of so many samples;
        in float64. `squared` are its squared norms, parameter by parameter."""
        assert self.norm is not None
        return [self._weights(torch.stack(list(squared)).sum(dim=0), self.norm, together)] * len(squared)

    def forget(self) -> None:
        """What was weighed since the last step isn't released."""

    def _weights(self, squared: Tensor, norm: float, together: int) -> Tensor:
        scale = self._scale(squared)
        allowed = norm * (1.0 - MARGIN - MARGIN_A_SAMPLE * together)
        weights = (allowed / (squared.sqrt() * scale)).clamp_(max=1.0) * scale
        # Below the normal range float32 has few digits, and would round a weight up by as much as a half.
        return functional.threshold(weights, torch.finfo(torch.float32).tiny, 0.0)

    def _scale(self, squared: Tensor) -> int:
        """How many times as long a sample's own gradient is as the one that backward finds."""
        return len(squared) if self.reduction == "mean" else 1


@dataclass
class PerLayer(Bound):
    """`norm` is that of all layers together, which the noise is made for. Without norms by name all layers get the same
    share of it."""

    by_name: Mapping[str, float] = field(default_factory=dict)
    _by_id: dict[int, float] = field(default_factory=dict)

    @classmethod
    def given(cls, by_name: Mapping[str, float], reduction: Reduction) -> PerLayer:
        return cls(math.hypot(*by_name.values()), reduction, by_name)

    def prepare(self, named: Named) -> None:
        assert self.norm is not None
        names = [name for name, _ in named]
        norms = self.by_name or dict.fromkeys(names, self.norm / math.sqrt(len(names)))
        odd = sorted(set(norms) ^ set(names))
        if odd:
            wrong = f"no norm for {odd[0]}" if odd[0] in names else f"no trained parameter {odd[0]}"
            raise BadSetting(f"max_grad_norm: {wrong}; give one for each trained parameter, by its name")
        self._by_id = {id(parameter): norms[name] for name, parameter in named}

    def weights(self, parameters: Sequence[Tensor], squared: Sequence[Tensor], together: int) -> list[Tensor]:
        pairs = zip(parameters, squared, strict=True)
        return [self._weights(one, self._by_id[id(parameter)], together) for parameter, one in pairs]


@dataclass
class Adaptive(Bound):
    """Andrew, Thakkar, McMahan and Ramaswamy (2021): after each step the norm moves so that a `share` of the samples
    lies below it. Their count gets noise of `count_std` samples, and takes a part of what the step costs: the sum gets
    so much more noise that both together cost what the noise multiplier says."""

    share: float = 0.5
    rate: float = 0.2
    count_std: float = 10.0
    _half_counts: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadSetting(f"the quantile of an adaptive bound must lie between 0 and 1: {self.share!r}")
        for name in ("rate", "count_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSetting(f"{name} of an adaptive bound must be a positive number: {getattr(self, name)!r}")

    def noise_std(self, noise_multiplier: float) -> float:
        left = noise_multiplier**-2 - (2 * self.count_std) ** -2
        if left <= 0:
            raise BadSetting(
                f"count_std {self.count_std:g} costs more than the whole step with noise_multiplier "
                f"{noise_multiplier:g}: it must be above {noise_multiplier / 2:g}"
            )
        return super().noise_std(1 / math.sqrt(left))

    def weights(self, parameters: Sequence[Tensor], squared: Sequence[Tensor], together: int) -> list[Tensor]:
        assert self.norm is not None
        total = torch.stack(list(squared)).sum(dim=0)
        below = int((total.sqrt() * self._scale(total) <= self.norm).sum())
        # A half is taken off each: one sample more or less then moves the count by a half instead of one.
        self._half_counts += below - len(total) / 2
        return super().weights(parameters, squared, together)

    def forget(self) -> None:
        self._half_counts = 0.0

    def take_counts(self, like: Tensor) -> Tensor:
        """Of this rank since the last step, for noise."""
        counts, self._half_counts = self._half_counts, 0.0
        return torch.tensor([counts], dtype=torch.float64, device="cpu" if like.device.type == "mps" else like.device)

    def move(self, noisy_counts: float, expected_batch: float) -> None:
        assert self.norm is not None
        seen = min(max(0.5 + noisy_counts / expected_batch, 0.0), 1.0)
        self.norm *= math.exp(-self.rate * (seen - self.share))


def bound_of(
    max_grad_norm: float | Mapping[str, float], clipping: str, reduction: Reduction, options: Mapping[str, float]
) -> Bound:
    """As `make_private` is asked for it."""
    if options and clipping != "adaptive":
        raise BadSetting(f"{', '.join(options)}: for clipping='adaptive' only")
    if isinstance(max_grad_norm, Mapping):
        if clipping != "per_layer":
            raise BadSetting("max_grad_norm has a norm for each parameter: that is clipping='per_layer'")
        for name, norm in max_grad_norm.items():
            check_positive(f"max_grad_norm of {name}", norm)
        return PerLayer.given(max_grad_norm, reduction)
    check_positive("max_grad_norm", max_grad_norm)
    kinds: dict[str, type[Bound]] = {"flat": Bound, "per_layer": PerLayer, "adaptive": Adaptive}
    if clipping not in kinds:
        raise BadSetting(f"clipping is {clipping!r}; it must be one of 'flat', 'per_layer', 'adaptive'")
    try:
        return kinds[clipping](float(max_grad_norm), reduction, **options)
    except TypeError as error:
        raise BadSetting("clipping_options are share, rate and count_std") from error


def check_positive(name: str, figure: object) -> None:
    if not isinstance(figure, int | float) or not math.isfinite(figure) or figure <= 0:
        raise BadSetting(f"{name} is {figure!r}; it must be a positive number")
