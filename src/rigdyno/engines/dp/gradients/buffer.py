"""The parameters' gradients in one flat buffer, so that one all-reduce and one pass of noise are enough.

In private training the buffer is hidden: `p.grad` is None after backward, and becomes a view of the buffer in step(),
after the noise was added. So the sum can't be read, changed or released before that. If a gradient is still referenced
elsewhere when the next sum begins, it is left unchanged and a new buffer is used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rigdyno.engines.dp.gradients.contributions import Contribution
from rigdyno.engines.dp.gradients.memory import to_channels_last


class Gradients:
    """The gradients of all parameters. In plain training (`hidden` is False) `p.grad` is a view of the buffer at once,
    as with autograd."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], hidden: bool) -> None:
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._hidden = hidden
        for parameter in self._parameters:
            parameter.data = to_channels_last(parameter.data)  # so that no step has to convert it
        self._written: set[int] = set()
        self._allocate()

    def _allocate(self) -> None:
        first = self._parameters[0]
        count = sum(parameter.numel() for parameter in self._parameters)
        self.flat = torch.zeros(count, dtype=first.dtype, device=first.device)
        self._views = _make_views(self.flat, self._parameters)
        self._view_by_id = {id(p): view for p, view in zip(self._parameters, self._views, strict=True)}
        self._expected_references = self._count_references()

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters. It may change between two sums; the buffer follows with the next sum."""
        return self._parameters[0].dtype

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._view_by_id

    def add(self, parameter: Tensor, contribution: Contribution, weights: Tensor | None) -> None:
        view = self._view_by_id[id(parameter)]
        contribution.add_weighted(weights, view, beta=1.0 if self._has_sum(parameter, view) else 0.0)
        self._written.add(id(parameter))
        if not self._hidden:
            parameter.grad = view

    def finish_sum(self) -> Tensor:
        """Return all gradients, flat, with zeros for those that were cleared or never reported. A new sum begins."""
        self.prepare()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if not self._has_sum(parameter, view):
                view.zero_()
        self._written.clear()
        return self.flat

    def publish(self) -> None:
        """Set `p.grad` after the noise was added. A parameter that was frozen meanwhile gets no gradient."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view if parameter.requires_grad else None

    def clear(self) -> None:
        self._written.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def find_foreign_gradient(self) -> str | None:
        """Return the name of a parameter whose gradient was set elsewhere; None if there is none."""
        if not self._hidden:
            return None
        for name, parameter, view in zip(self._names, self._parameters, self._views, strict=True):
            if parameter.grad is not None and parameter.grad is not view:
                return name
        return None

    def prepare(self) -> None:
        """Prepare a new sum: reuse the buffer of the last step, or allocate a new one if a gradient is still in use."""
        if self._hidden and not self._written:
            self._take_back()
            if self._has_changed_kind() or self._count_references() != self._expected_references:
                self._allocate()

    def _take_back(self) -> None:
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is view:
                parameter.grad = None

    def _has_changed_kind(self) -> bool:
        """Return True after .double() or .to(device). One parameter is enough, since all have the same type."""
        first = self._parameters[0]
        return (first.dtype, first.device) != (self.flat.dtype, self.flat.device)

    def _count_references(self) -> tuple[int, list[int], list[int]]:
        """Count the references to the memory by tensors, and to each view by Python and by torch."""
        memory = int(torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata))
        return memory, list(map(sys.getrefcount, self._views)), [view._use_count() for view in self._views]  # type: ignore[attr-defined]

    def _has_sum(self, parameter: Tensor, view: Tensor) -> bool:
        return id(parameter) in self._written and (self._hidden or parameter.grad is view)


def _make_views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return a view of the buffer for each parameter, with the parameter's memory layout."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    pairs = zip(pieces, parameters, strict=True)
    return [piece.as_strided(p.shape, _strides(p), piece.storage_offset()) for piece, p in pairs]


def _strides(parameter: Tensor) -> tuple[int, ...]:
    """Return the strides of a dense tensor with the parameter's order of axes in memory."""
    return torch.empty_like(parameter, memory_format=torch.preserve_format).stride()
