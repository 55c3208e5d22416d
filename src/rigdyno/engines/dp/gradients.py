"""The parameters' gradients in one flat buffer: one sum over ranks, one pass of noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.contributions import Contribution
from rigdyno.engines.dp.layout import channels_last


class Gradients:
    """`p.grad` of every parameter is a view of the buffer, so what a user clears or reads is what counts."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        first = parameters[0]
        for parameter in parameters:
            parameter.data = channels_last(parameter.data)  # so that no step turns it around
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self._views = list(zip(parameters, _views(self.flat, parameters), strict=True))
        self._place = {id(parameter): view for parameter, view in self._views}
        self._written: set[int] = set()

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._place

    def add(self, parameter: Tensor, contribution: Contribution, weights: Tensor | None) -> None:
        view = self._place[id(parameter)]
        contribution.add_weighed(weights, view, beta=1.0 if self._holds_a_sum(parameter, view) else 0.0)
        self._written.add(id(parameter))
        parameter.grad = view

    def complete(self) -> Tensor:
        """All of them, flat; what was cleared, or never came, is zero, and the next sum starts anew."""
        for parameter, view in self._views:
            if not self._holds_a_sum(parameter, view):
                view.zero_()
                parameter.grad = view
        self._written.clear()
        return self.flat

    def _holds_a_sum(self, parameter: Tensor, view: Tensor) -> bool:
        return id(parameter) in self._written and parameter.grad is view


def _views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Each laid out like its parameter."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    pairs = zip(pieces, parameters, strict=True)
    return [piece.as_strided(p.shape, _strides(p), piece.storage_offset()) for piece, p in pairs]


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """Of a dense tensor in the order of the parameter's own memory."""
    return torch.empty_like(parameter, memory_format=torch.preserve_format).stride()
