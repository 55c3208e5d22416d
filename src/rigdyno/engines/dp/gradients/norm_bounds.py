"""Clipping norms: flat, per layer, and adaptive.

flat       |g_i| <= C
per layer  |g_i of parameter l| <= C_l, so that |g_i| <= sqrt(sum of C_l^2)
adaptive   flat, and C follows a quantile of the samples' norms, by a count that gets its own noise
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

# Margin below C, as a share of it: the float32 sums of two neighbouring batches are rounded differently.
MARGIN = 1e-5

MARGIN_A_SAMPLE = 2.0**-22

Reduction = Literal["mean", "sum"]

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass
class ClippingNorm:
    """Flat clipping: no sample's gradient is longer than `norm`. None: plain training by the same kernels."""

    norm: float | None
    reduction: Reduction = "mean"

    def prepare(self, named: Named) -> None:
        """Prepare for these parameters, before training."""

    def noise_std(self, noise_multiplier: float) -> float:
        """Return the standard deviation of the noise added to the sum."""
        assert self.norm is not None
        return noise_multiplier * self.norm

    def weights(self, parameters: Sequence[Tensor], squared: Sequence[Tensor], together: int) -> list[Tensor]:
        """Return the weights of each sample's gradient, as backward computes it, for each parameter; in float64.

        `squared` are the squared norms, parameter by parameter; `together` is the number of samples in the sum.
        """
        assert self.norm is not None
        return [self._compute_weights(torch.stack(list(squared)).sum(dim=0), self.norm, together)] * len(squared)

    def discard_counts(self) -> None:
        """Discard what was counted since the last step, because it isn't released."""

    def _compute_weights(self, squared: Tensor, norm: float, together: int) -> Tensor:
        scale = self._scale(squared)
        allowed = norm * (1.0 - MARGIN - MARGIN_A_SAMPLE * together)
        weights = (allowed / (squared.sqrt() * scale)).clamp_(max=1.0) * scale
        # Subnormal float32 numbers have few digits: rounding could raise a weight by up to a half.
        return functional.threshold(weights, torch.finfo(torch.float32).tiny, 0.0)

    def _scale(self, squared: Tensor) -> int:
        """Return the ratio of a sample's own gradient to the one that backward computes."""
        return len(squared) if self.reduction == "mean" else 1


@dataclass
class PerLayer(ClippingNorm):
    """Clipping per parameter. `norm` is that of all parameters together, which determines the noise.

    Without norms by name, all parameters get the same share of it.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    _by_id: dict[int, float] = field(default_factory=dict)

    @classmethod
    def from_names(cls, by_name: Mapping[str, float], reduction: Reduction) -> PerLayer:
        return cls(math.hypot(*by_name.values()), reduction, by_name)

    def prepare(self, named: Named) -> None:
        assert self.norm is not None
        names = [name for name, _ in named]
        norms = self.by_name or dict.fromkeys(names, self.norm / math.sqrt(len(names)))
        unmatched = sorted(set(norms) ^ set(names))
        if unmatched:
            wrong = f"no norm for {unmatched[0]}" if unmatched[0] in names else f"no trained parameter {unmatched[0]}"
            raise BadSetting(f"max_grad_norm: {wrong}; give one for each trained parameter, by its name")
        self._by_id = {id(parameter): norms[name] for name, parameter in named}

    def weights(self, parameters: Sequence[Tensor], squared: Sequence[Tensor], together: int) -> list[Tensor]:
        pairs = zip(parameters, squared, strict=True)
        return [self._compute_weights(one, self._by_id[id(parameter)], together) for parameter, one in pairs]


@dataclass
class Adaptive(ClippingNorm):
    """Adaptive clipping by Andrew, Thakkar, McMahan and Ramaswamy (2021).

    After each step the norm moves so that a `share` of the samples' norms is below it. The count of these samples gets
    noise of `count_std` samples, and takes a part of the privacy cost of the step. So the sum gets more noise: both
    together cost what the noise multiplier says.
    """

    share: float = 0.5
    rate: float = 0.2
    count_std: float = 10.0
    _half_counts: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadSetting(f"share of adaptive clipping must be between 0 and 1: {self.share!r}")
        for name in ("rate", "count_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadSetting(f"{name} of adaptive clipping must be a positive number: {getattr(self, name)!r}")

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
        # Subtract a half for each sample, so that one sample more or less changes the count by a half, not by one.
        self._half_counts += below - len(total) / 2
        return super().weights(parameters, squared, together)

    def discard_counts(self) -> None:
        self._half_counts = 0.0

    def take_counts(self, like: Tensor) -> Tensor:
        """Return the count of this rank since the last step, for the noise, and reset it."""
        counts, self._half_counts = self._half_counts, 0.0
        return torch.tensor([counts], dtype=torch.float64, device="cpu" if like.device.type == "mps" else like.device)

    def update_norm(self, noisy_counts: float, expected_batch: float) -> None:
        """Move the norm towards the quantile, by the noisy count of all ranks."""
        assert self.norm is not None
        seen = min(max(0.5 + noisy_counts / expected_batch, 0.0), 1.0)
        self.norm *= math.exp(-self.rate * (seen - self.share))


def make_bound(
    max_grad_norm: float | Mapping[str, float], clipping: str, reduction: Reduction, options: Mapping[str, float]
) -> ClippingNorm:
    """Make the Bound that the arguments of `make_private` ask for."""
    if options and clipping != "adaptive":
        raise BadSetting(f"{', '.join(options)}: for clipping='adaptive' only")
    if isinstance(max_grad_norm, Mapping):
        if clipping != "per_layer":
            raise BadSetting("max_grad_norm has a norm for each parameter: this needs clipping='per_layer'")
        for name, norm in max_grad_norm.items():
            check_positive(f"max_grad_norm of {name}", norm)
        return PerLayer.from_names(max_grad_norm, reduction)
    check_positive("max_grad_norm", max_grad_norm)
    kinds: dict[str, type[ClippingNorm]] = {"flat": ClippingNorm, "per_layer": PerLayer, "adaptive": Adaptive}
    if clipping not in kinds:
        raise BadSetting(f"clipping is {clipping!r}; it must be one of 'flat', 'per_layer', 'adaptive'")
    try:
        return kinds[clipping](float(max_grad_norm), reduction, **options)
    except TypeError as error:
        raise BadSetting("clipping_options must be share, rate and count_std") from error


def check_positive(name: str, figure: object) -> None:
    if not isinstance(figure, int | float) or not math.isfinite(figure) or figure <= 0:
        raise BadSetting(f"{name} is {figure!r}; it must be a positive number")
