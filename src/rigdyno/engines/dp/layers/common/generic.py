"""The layer for modules without a rule: per-sample gradients by torch.func. It works for any module, but is slower."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from rigdyno.engines.dp.checks.axes import UNCLEAR, Axes, check_axis
from rigdyno.engines.dp.checks.forwards import find_user_forward
from rigdyno.engines.dp.errors import MixesSamples, Unprotected
from rigdyno.engines.dp.gradients.contributions import PerSample
from rigdyno.engines.dp.gradients.passes import Pass
from rigdyno.engines.dp.layers import PrivateLayer

Named = dict[str, Tensor]

# Pulls gradients back: (function of parameters and inputs, parameters, inputs, output gradients) -> gradients.
PullBack = Callable[[Callable[..., tuple[Tensor, ...]], Named, list[Tensor], tuple[Tensor, ...]], Any]

_TENSOR = object()  # placeholder for a tensor

_warned: set[str] = set()


class Generic(PrivateLayer):
    """Runs a module together with its children, because it isn't known how it uses them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._own = _OwnForward(self.module, find_user_forward(self.module))
        self._mapped: bool | None = None
        _warn_once(type(self.module).__name__, self.name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.run_plain(*args, **kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._check_hidden_tensors()
        leaves, form = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        axes = self.find_axes(args, kwargs)
        rows = self._move_samples_first(tensors, axes)
        current_pass = self.clipping.find_pass(
            next(row for row, axis in zip(rows, axes.inputs, strict=True) if axis is not None)
        )
        if current_pass.samples == 0:
            return self._run_empty(*args, **kwargs)
        call = _Call(self, current_pass, leaves, form, axes)
        found = _Generic.apply(self, call, self.clipping.anchor, *rows)
        return call.assemble([output.movedim(0, axis) for output, axis in zip(found, axes.outputs, strict=True)])

    def _move_samples_first(self, tensors: list[Tensor], axes: Axes) -> list[Tensor]:
        """Return the tensors, with the sample axis first in those that carry samples."""
        if tensors and all(axis is None for axis in axes.inputs):
            check_axis(self.name, None)
        if not tensors or UNCLEAR in axes.inputs or UNCLEAR in axes.outputs or None in axes.outputs:
            raise MixesSamples(
                f"{self.name} ({type(self.module).__name__}): one of its inputs or outputs is neither the same for all "
                "samples nor has one part for each; use padded batches, and return one output per sample"
            )
        return [t if axis is None else t.movedim(axis, 0) for t, axis in zip(tensors, axes.inputs, strict=True)]

    def _check_hidden_tensors(self) -> None:
        """Raise Unprotected if the module stores a computed tensor as an attribute: its gradient would be lost."""
        for name, module in self.module.named_modules():
            for key, value in (*vars(module).items(), *module._buffers.items()):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    raise Unprotected(
                        f"{f'{self.name}.{name}'.strip('.')} stores the tensor {key}, computed from parameters "
                        "elsewhere, whose gradient would be lost: pass it as an argument, or compute it inside"
                    )

    def _run_empty(self, *args: Any, **kwargs: Any) -> Any:
        """Run an empty batch without mapping. Adding the anchor makes the output one that backward accepts."""
        with torch.no_grad():
            found = self._own(*args, **kwargs)
        return tree_map_only(Tensor, lambda output: output + self.clipping.anchor, found)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        named = self._own.named_parameters()
        return {name: parameter for name, parameter in named if self.is_trained(parameter)}

    def fixed_tensors(self) -> Named:
        """Return the buffers, and the parameters that aren't trained."""
        mine = self.trained_parameters()
        rest = {name: value for name, value in self._own.named_parameters() if name not in mine}
        return _detach({**rest, **dict(self._own.named_buffers())})

    def can_be_mapped(self, call: _Call, tensors: tuple[Tensor, ...]) -> bool:
        """Return True if vmap supports all operations of this module, forward and backward. Tried once."""
        if self._mapped is None:
            with torch.random.fork_rng(devices=[]):
                self._mapped = _try_vmap(call, _detach(self.trained_parameters()), tensors)
        return self._mapped


class _OwnForward(nn.Module):
    """Calls the module's own forward instead of the one that replaces it."""

    def __init__(self, module: nn.Module, own: Callable[..., Any] | None) -> None:
        super().__init__()
        self.inner, self._user_forward = module, own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._user_forward is not None:
            return self._user_forward(*args, **kwargs)
        return type(self.inner).forward(self.inner, *args, **kwargs)


class _Call:
    """One call of the module: which arguments are tensors, and which of those carry samples."""

    def __init__(self, layer: Generic, current_pass: Pass, leaves: list[Any], form: TreeSpec, axes: Axes) -> None:
        self._layer, self.current_pass, self._form = layer, current_pass, form
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._established = axes
        self.axes = tuple(None if axis is None else 0 for axis in axes.inputs)
        for leaf, axis in zip((leaf for leaf in leaves if isinstance(leaf, Tensor)), axes.inputs, strict=True):
            if axis is not None:
                current_pass.check_samples(leaf.shape[axis], layer.name)
        self.random = torch.get_rng_state()
        self._output: tuple[list[Any], Any] = ([], None)

    def run_one(self, trained: Named, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the output for one sample."""
        leaves = list(self._leaves)
        for place, axis, tensor in zip(self._places, self._established.inputs, tensors, strict=True):
            leaves[place] = tensor if axis is None else tensor.unsqueeze(axis)
        args, kwargs = tree_unflatten(leaves, self._form)
        own = {**self._layer.fixed_tensors(), **trained}
        found, form = tree_flatten(functional_call(self._layer._own, own, args, kwargs))
        self._output = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in found], form
        outputs = [leaf for leaf in found if isinstance(leaf, Tensor)]
        pairs = zip(outputs, self._established.outputs, strict=True)
        return tuple(output.squeeze(axis) for output, axis in pairs)  # type: ignore[arg-type]

    def assemble(self, tensors: list[Tensor]) -> Any:
        """Return the output for all samples, in the structure of the module's own output."""
        leaves, form = self._output
        outputs = iter(tensors)
        return tree_unflatten([next(outputs) if leaf is _TENSOR else leaf for leaf in leaves], form)


class _Generic(Function):
    @staticmethod
    def forward(ctx: Any, layer: Generic, call: _Call, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.layer, ctx.call = layer, call
        trained = _detach(layer.trained_parameters())
        each = _map_by_vmap if layer.can_be_mapped(call, tensors) else _map_one_by_one
        return tuple(each(lambda *given: call.run_one(trained, *given), call.axes, tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer, call, tensors = ctx.layer, ctx.call, ctx.saved_tensors
        moving = [number for number, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(call.random)
            found, inputs = _pull_back(layer, call, moving, tensors, gradients)
        for name, parameter in layer.trained_parameters().items():
            call.current_pass.add(parameter, PerSample(found[name]))
        back: list[Tensor | None] = [None] * len(tensors)
        for number, gradient in zip(moving, inputs, strict=True):
            back[number] = gradient if call.axes[number] == 0 else gradient.sum(dim=0)
        return None, None, None, *back


def _pull_back(
    layer: Generic, call: _Call, moving: list[int], tensors: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> Any:
    """Return the per-sample gradients of the parameters, by name, and of the inputs that require one."""
    mapped = layer.can_be_mapped(call, tensors)
    pull_back_one = _make_pull_back(
        call,
        _detach(layer.trained_parameters()),
        moving,
        len(tensors),
        _pull_back_by_vjp if mapped else _pull_back_by_autograd,
    )
    each = _map_by_vmap if mapped else _map_one_by_one
    return each(pull_back_one, (*call.axes, *(0,) * len(gradients)), (*tensors, *gradients))


def _make_pull_back(
    call: _Call, trained: Named, moving: list[int], count: int, pull_back: PullBack
) -> Callable[..., Any]:
    """Make a function that pulls one sample's gradients back.

    Its first `count` arguments are the module's inputs, the others the gradients of its outputs. `moving` are the
    numbers of the inputs that require a gradient.
    """

    def pull_back_one(*given: Tensor) -> Any:
        def run(named: Named, *moved: Tensor) -> tuple[Tensor, ...]:
            by_number = dict(zip(moving, moved, strict=True))
            return call.run_one(named, *(by_number.get(number, tensor) for number, tensor in enumerate(given[:count])))

        return pull_back(run, trained, [given[number] for number in moving], given[count:])

    return pull_back_one


def _pull_back_by_vjp(
    run: Callable[..., tuple[Tensor, ...]], trained: Named, moved: list[Tensor], gradients: tuple[Tensor, ...]
) -> Any:
    back: Any = vjp(run, trained, *moved)[1]
    named, *inputs = back(tuple(gradients))
    return named, tuple(inputs)


def _pull_back_by_autograd(
    run: Callable[..., tuple[Tensor, ...]], trained: Named, moved: list[Tensor], gradients: tuple[Tensor, ...]
) -> Any:
    with torch.enable_grad():
        leaves = {name: value.requires_grad_() for name, value in _detach(trained).items()}
        inputs = [tensor.detach().requires_grad_() for tensor in moved]
        pairs = zip(run(leaves, *inputs), gradients, strict=True)
        outputs = [(found, gradient) for found, gradient in pairs if found.requires_grad]
    wanted = [*leaves.values(), *inputs]
    found, given = zip(*outputs, strict=True)
    grads = torch.autograd.grad(found, wanted, given, materialize_grads=True)
    return dict(zip(leaves, grads, strict=False)), grads[len(leaves) :]


def _map_by_vmap(function: Callable[..., Any], axes: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    with _without_saved_tensor_hooks():
        return vmap(function, in_dims=axes, randomness="different")(*tensors)


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Disable saved-tensor hooks, such as those of a checkpoint around the module.

    torch.func doesn't work with such hooks, and the tensors that it saves are no concern of theirs.
    """
    hooks: Any = torch._C._autograd
    held = []
    while (top := hooks._top_saved_tensors_default_hooks(False)) is not None:
        held.append(top)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(held):
            hooks._push_saved_tensors_default_hooks(pack, unpack)


def _map_one_by_one(function: Callable[..., Any], axes: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    samples = next(len(tensor) for tensor, axis in zip(tensors, axes, strict=True) if axis == 0)
    rows = []
    for row in range(samples):
        pairs = zip(tensors, axes, strict=True)
        rows.append(tree_flatten(function(*(tensor if axis is None else tensor[row] for tensor, axis in pairs))))
    columns = zip(*(leaves for leaves, _ in rows), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], rows[0][1])


def _try_vmap(call: _Call, trained: Named, tensors: tuple[Tensor, ...]) -> bool:
    try:
        outputs = _map_by_vmap(lambda *given: call.run_one(trained, *given), call.axes, tensors)
        pull_back_one = _make_pull_back(call, trained, [], len(tensors), _pull_back_by_vjp)
        _map_by_vmap(pull_back_one, (*call.axes, *(0,) * len(outputs)), (*tensors, *outputs))
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def _detach(named: Mapping[str, Tensor]) -> Named:
    return {name: value.detach() for name, value in named.items()}


def _warn_once(kind: str, name: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{name or 'the network'} ({kind}) has parameters of its own and no rule: its per-sample gradients, and "
            "those of the modules inside it, are computed by torch.func, which is slower",
            stacklevel=2,
        )
