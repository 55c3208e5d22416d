"""The parameters' gradients in one flat buffer: one sum over ranks, one pass of noise.

In private training the buffer is hidden: `p.grad` is None from backward on and becomes a view of it in step(), when it
has its noise. Nobody can read, change or release the sum before. Whoever keeps a gradient keeps it: the next sum is
then formed in another buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.contributions import Contribution
from rigdyno.engines.dp.layout import channels_last


class Gradients:
    """Plain training (`hidden` is false) has `p.grad` as a view at once, as autograd would."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], hidden: bool) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._hidden = hidden
        for parameter in self._parameters:
            parameter.data = channels_last(parameter.data)  # so that no step turns it around
        self._written: set[int] = set()
        self._allocate()

    def _allocate(self) -> None:
        first = self._parameters[0]
        count = sum(parameter.numel() for parameter in self._parameters)
        self.flat = torch.zeros(count, dtype=first.dtype, device=first.device)
        self._views = _views(self.flat, self._parameters)
        self._place = {id(p): view for p, view in zip(self._parameters, self._views, strict=True)}
        self._unkept = self._references()

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, which may change between two sums; the buffer follows with the next one."""
        return self._parameters[0].dtype

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._place

    def add(self, parameter: Tensor, contribution: Contribution, weights: Tensor | None) -> None:
        view = self._place[id(parameter)]
        contribution.add_weighed(weights, view, beta=1.0 if self._holds_a_sum(parameter, view) else 0.0)
        self._written.add(id(parameter))
        if not self._hidden:
            parameter.grad = view

    def complete(self) -> Tensor:
        """All of them, flat; what was cleared, or never came, is zero, and the next sum starts anew."""
        self.ready()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if not self._holds_a_sum(parameter, view):
                view.zero_()
        self._written.clear()
        return self.flat

    def publish(self) -> None:
        """After noise. A parameter that was frozen meanwhile has no gradient."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view if parameter.requires_grad else None

    def clear(self) -> None:
        self._written.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def set_by_others(self) -> str | None:
        """The name of a parameter with a gradient that doesn't come from here."""
        if not self._hidden:
            return None
        for name, parameter, view in zip(self._names, self._parameters, self._views, strict=True):
            if parameter.grad is not None and parameter.grad is not view:
                return name
        return None

    def ready(self) -> None:
        """Before a new sum: the last step's gradients are taken back, unless somebody has kept one."""
        if self._hidden and not self._written:
            self._take_back()
            if self._changed_kind() or self._references() != self._unkept:
                self._allocate()

    def _take_back(self) -> None:
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is view:
                parameter.grad = None

    def _changed_kind(self) -> bool:
        """By .double() or .to(device). One parameter tells: torch refuses a gradient of another kind than its own."""
        first = self._parameters[0]
        return (first.dtype, first.device) != (self.flat.dtype, self.flat.device)

    def _references(self) -> tuple[int, list[int], list[int]]:
        """How many there are to the memory and to each view: by tensors, by Python's names, by torch itself."""
        memory = int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))
        return memory, list(map(sys.getrefcount, self._views)), [view._use_count() for view in self._views]  # type: ignore[attr-defined]

    def _holds_a_sum(self, parameter: Tensor, view: Tensor) -> bool:
        return id(parameter) in self._written and (self._hidden or parameter.grad is view)


def _views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Each laid out like its parameter."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    pairs = zip(pieces, parameters, strict=True)
    return [piece.as_strided(p.shape, _strides(p), piece.storage_offset()) for piece, p in pairs]


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """Of a dense tensor in the order of the parameter's own memory."""
    return torch.empty_like(parameter, memory_format=torch.preserve_format).stride()
