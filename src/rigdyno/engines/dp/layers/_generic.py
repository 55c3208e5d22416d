"""Any other module with parameters: torch.func, one sample at a time; right for everything, and slower."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from rigdyno.engines.dp.checks.axes import UNCLEAR, Axes, refuse_axis
from rigdyno.engines.dp.contributions import PerSample
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.forwards import own_forward
from rigdyno.engines.dp.layers import Layer
from rigdyno.engines.dp.passes import Pass

Named = dict[str, Tensor]
_TENSOR = object()  # stands for one


class Generic(Layer):
    """Takes the module's children along: what they do is only known as a whole."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._own = _Own(self.module, own_forward(self.module))
        self._mapped: bool | None = None
        _say_once(type(self.module).__name__, self.name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_hidden()
        leaves, form = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        axes = self.axes_of(args, kwargs)
        rows = self._by_sample(tensors, axes)
        passing = self.clipping.passing(
            next(row for row, axis in zip(rows, axes.given, strict=True) if axis is not None)
        )
        if passing.samples == 0:
            return self._of_nothing(*args, **kwargs)
        call = _Call(self, passing, leaves, form, axes)
        found = _Generic.apply(self, call, self.clipping.anchor, *rows)
        return call.whole([answer.movedim(0, axis) for answer, axis in zip(found, axes.answered, strict=True)])

    def _by_sample(self, tensors: list[Tensor], axes: Axes) -> list[Tensor]:
        """Those that carry samples, with a sample a row."""
        if tensors and all(axis is None for axis in axes.given):
            refuse_axis(self.name, None)
        if not tensors or UNCLEAR in axes.given or UNCLEAR in axes.answered or None in axes.answered:
            raise MixesSamples(
                f"{self.name} ({type(self.module).__name__}): some of what it is given or answers is neither the same "
                "for all samples nor one part for each; give it padded batches, and let it answer sample by sample"
            )
        return [t if axis is None else t.movedim(axis, 0) for t, axis in zip(tensors, axes.given, strict=True)]

    def _refuse_hidden(self) -> None:
        """What a module keeps as an attribute reaches it past its arguments, and its gradient would get lost."""
        for name, module in self.module.named_modules():
            for key, value in (*vars(module).items(), *module._buffers.items()):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    raise Unprotected(
                        f"{f'{self.name}.{name}'.strip('.')} keeps the tensor {key}, computed from parameters "
                        "elsewhere: their gradient would get lost here; pass it as an argument, or compute it inside"
                    )

    def _of_nothing(self, *args: Any, **kwargs: Any) -> Any:
        """There is nothing to map over; the anchor makes the answer one that backward accepts."""
        with torch.no_grad():
            found = self._own(*args, **kwargs)
        return tree_map_only(Tensor, lambda answer: answer + self.clipping.anchor, found)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        named = self._own.named_parameters()
        return {name: parameter for name, parameter in named if self.trained(parameter)}

    def fixed(self) -> Named:
        mine = self.trained_parameters()
        rest = {name: value for name, value in self._own.named_parameters() if name not in mine}
        return _detached({**rest, **dict(self._own.named_buffers())})

    def mapped(self, call: _Call, tensors: tuple[Tensor, ...]) -> bool:
        """Whether vmap knows all operations of this module, there and back; tried once, without a trace."""
        if self._mapped is None:
            with torch.random.fork_rng(devices=[]):
                self._mapped = _can_be_mapped(call, _detached(self.trained_parameters()), tensors)
        return self._mapped


class _Own(nn.Module):
    """Calls the module's own forward, past the one that stands in for it."""

    def __init__(self, module: nn.Module, own: Callable[..., Any] | None) -> None:
        super().__init__()
        self.inner, self._theirs = module, own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._theirs is not None:
            return self._theirs(*args, **kwargs)
        return type(self.inner).forward(self.inner, *args, **kwargs)


class _Call:
    """One call of the module: which arguments are tensors, and which of those have a sample a row."""

    def __init__(self, layer: Generic, passing: Pass, leaves: list[Any], form: TreeSpec, axes: Axes) -> None:
        self._layer, self.passing, self._form = layer, passing, form
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._established = axes
        self.axes = tuple(None if axis is None else 0 for axis in axes.given)
        for leaf, axis in zip((leaf for leaf in leaves if isinstance(leaf, Tensor)), axes.given, strict=True):
            if axis is not None:
                passing.check_samples(leaf.shape[axis], layer.name)
        self.random = torch.get_rng_state()
        self._answer: tuple[list[Any], Any] = ([], None)

    def one(self, trained: Named, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The answer to one sample."""
        leaves = list(self._leaves)
        for place, axis, tensor in zip(self._places, self._established.given, tensors, strict=True):
            leaves[place] = tensor if axis is None else tensor.unsqueeze(axis)
        args, kwargs = tree_unflatten(leaves, self._form)
        own = {**self._layer.fixed(), **trained}
        found, form = tree_flatten(functional_call(self._layer._own, own, args, kwargs))
        self._answer = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in found], form
        answers = [leaf for leaf in found if isinstance(leaf, Tensor)]
        pairs = zip(answers, self._established.answered, strict=True)
        return tuple(answer.squeeze(axis) for answer, axis in pairs)  # type: ignore[arg-type]

    def whole(self, tensors: list[Tensor]) -> Any:
        """The answer to all samples, in the form that the module gave it."""
        leaves, form = self._answer
        answers = iter(tensors)
        return tree_unflatten([next(answers) if leaf is _TENSOR else leaf for leaf in leaves], form)


class _Generic(Function):
    @staticmethod
    def forward(ctx: Any, layer: Generic, call: _Call, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.layer, ctx.call = layer, call
        trained = _detached(layer.trained_parameters())
        each = _by_vmap if layer.mapped(call, tensors) else _one_by_one
        return tuple(each(lambda *given: call.one(trained, *given), call.axes, tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, call, tensors = ctx.layer, ctx.call, ctx.saved_tensors
        moving = [number for number, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(call.random)
            found, inputs = _pulled_back(layer, call, moving, tensors, gradients)
        for name, parameter in layer.trained_parameters().items():
            call.passing.add(parameter, PerSample(found[name]))
        back: list[Tensor | None] = [None] * len(tensors)
        for number, gradient in zip(moving, inputs, strict=True):
            back[number] = gradient if call.axes[number] == 0 else gradient.sum(dim=0)
        return None, None, None, *back


def _pulled_back(
    layer: Generic, call: _Call, moving: list[int], tensors: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> Any:
    """The gradients of the parameters by name, and of those inputs that ask for one; a row a sample."""
    mapped = layer.mapped(call, tensors)
    work = _pull(call, _detached(layer.trained_parameters()), moving, len(tensors), _by_vjp if mapped else _by_autograd)
    each = _by_vmap if mapped else _one_by_one
    return each(work, (*call.axes, *(0,) * len(gradients)), (*tensors, *gradients))


Puller = Callable[[Callable[..., tuple[Tensor, ...]], Named, list[Tensor], tuple[Tensor, ...]], Any]


def _pull(call: _Call, trained: Named, moving: list[int], count: int, by: Puller) -> Callable[..., Any]:
    """For one sample; `count` of what it is given are the module's inputs, the others gradients of its answers."""

    def work(*given: Tensor) -> Any:
        def answer(named: Named, *moved: Tensor) -> tuple[Tensor, ...]:
            placed = dict(zip(moving, moved, strict=True))
            return call.one(named, *(placed.get(number, tensor) for number, tensor in enumerate(given[:count])))

        return by(answer, trained, [given[number] for number in moving], given[count:])

    return work


def _by_vjp(
    answer: Callable[..., tuple[Tensor, ...]], trained: Named, moved: list[Tensor], gradients: tuple[Tensor, ...]
) -> Any:
    back: Any = vjp(answer, trained, *moved)[1]
    named, *inputs = back(tuple(gradients))
    return named, tuple(inputs)


def _by_autograd(
    answer: Callable[..., tuple[Tensor, ...]], trained: Named, moved: list[Tensor], gradients: tuple[Tensor, ...]
) -> Any:
    with torch.enable_grad():
        leaves = {name: value.requires_grad_() for name, value in _detached(trained).items()}
        inputs = [tensor.detach().requires_grad_() for tensor in moved]
        answers = [
            (found, g) for found, g in zip(answer(leaves, *inputs), gradients, strict=True) if found.requires_grad
        ]
    wanted = [*leaves.values(), *inputs]
    found, given = zip(*answers, strict=True)
    grads = torch.autograd.grad(found, wanted, given, materialize_grads=True)
    return dict(zip(leaves, grads, strict=False)), grads[len(leaves) :]


def _by_vmap(work: Callable[..., Any], axes: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    return vmap(work, in_dims=axes, randomness="different")(*tensors)


def _one_by_one(work: Callable[..., Any], axes: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    samples = next(len(tensor) for tensor, axis in zip(tensors, axes, strict=True) if axis == 0)
    rows = []
    for row in range(samples):
        pairs = zip(tensors, axes, strict=True)
        rows.append(tree_flatten(work(*(tensor if axis is None else tensor[row] for tensor, axis in pairs))))
    columns = zip(*(leaves for leaves, _ in rows), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], rows[0][1])


def _can_be_mapped(call: _Call, trained: Named, tensors: tuple[Tensor, ...]) -> bool:
    try:
        answers = _by_vmap(lambda *given: call.one(trained, *given), call.axes, tensors)
        work = _pull(call, trained, [], len(tensors), _by_vjp)
        _by_vmap(work, (*call.axes, *(0,) * len(answers)), (*tensors, *answers))
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def _detached(named: Mapping[str, Tensor]) -> Named:
    return {name: value.detach() for name, value in named.items()}


_said: set[str] = set()


def _say_once(kind: str, name: str) -> None:
    if kind not in _said:
        _said.add(kind)
        warnings.warn(
            f"{name or 'the network'} ({kind}) has parameters of its own and no rule: its per-sample gradients, and "
            "those of the modules inside it, come from torch.func, which is slower",
            stacklevel=2,
        )
