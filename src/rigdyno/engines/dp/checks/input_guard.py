"""Guard every call of the network: check the inputs before they may be trained on.

every pass      the number of samples; no autocast; frozen norms are still frozen
first pass      by running the network: the sample axis of each layer's inputs, and that samples don't mix
later           the same again in another mode of the network, with a batch over twice as large as before, and at random
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from rigdyno.engines.dp.checks.axes import Axes, Signature, find_axes, signature, tensors_in
from rigdyno.engines.dp.checks.forwards import NetworkForward
from rigdyno.engines.dp.checks.mixing import CheckSchedule, MixingCheck
from rigdyno.engines.dp.checks.probing import HookListener, Inputs, NetworkProbe
from rigdyno.engines.dp.checks.validate import check_not_transposed, may_mix
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError
from rigdyno.engines.dp.gradients.clipping import Clipping
from rigdyno.engines.dp.gradients.passes import NO_TASK, current_task
from rigdyno.engines.dp.layers import PrivateLayer


class _CallState(threading.local):
    """The open calls of the network in one thread."""

    def __init__(self) -> None:
        self.inputs: list[Inputs | None] = []
        self.listener: HookListener | None = None

    def stop_listener(self) -> list[object]:
        listener, self.listener = self.listener, None
        return [] if listener is None else listener.stop()


class InputGuard:
    """Checks the calls of one network by hooks that run before and after its forward."""

    def __init__(
        self,
        network: nn.Module,
        clipping: Clipping,
        layers: Sequence[PrivateLayer],
        batch_first: bool,
        fused: Sequence[nn.Module] = (),
    ) -> None:
        """Install the guard.

        `fused` are modules that are run together with others. Their outputs aren't observed: that would run them
        separately, and take more memory than training.
        """
        self._network, self._clipping, self._layers = network, clipping, layers
        self._fused = {id(module) for module in fused}
        self._axis = 0 if batch_first else 1
        self._modules = list(network.modules())
        self._frozen_norms = [(name, norm) for name, norm in network.named_modules() if may_mix(norm)]
        self._modes: set[tuple[bool, ...]] = set()
        self._largest = 0
        self._known_places: dict[Signature, dict[int, int]] = {}  # which inputs carry samples, by signature of the call
        self._schedule = CheckSchedule()
        self._state = _CallState()
        self._active_hooks: list[object] = []  # the user's hooks that change what the network computes
        for layer in layers:
            layer.input_guard = self
        self._network_forward = NetworkForward(network)
        self._hooks: list[RemovableHandle] = [
            network.register_forward_pre_hook(_EnterHook(self), with_kwargs=True),
            network.register_forward_hook(_LeaveHook(self), always_call=True),
        ]

    def undo(self) -> None:
        self._network_forward.undo()
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            layer.input_guard = None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._network_forward.enter()
        self._clipping.enter()
        self._state.inputs.append(None)
        if not torch.is_grad_enabled():
            return
        inputs = Inputs(args, kwargs, self._axis)
        self._state.inputs[-1] = self._reuse_reading(inputs) or inputs
        self._check_modes(inputs)
        if (
            self._clipping.private
            and len(self._state.inputs) == 1
            and inputs.samples > 1
            and self._is_due(inputs.samples)
        ):
            self._check_pass(inputs)
            self._state.listener = HookListener(self._modules)
        self._clipping.begin_pass(inputs.samples, (self._reuse_reading(inputs) or inputs).sample_tensors())

    def _reuse_reading(self, inputs: Inputs) -> Inputs | None:
        """Read the inputs as in earlier calls of the same signature; None if there were none."""
        places = self._known_places.get(signature(inputs.tensors))
        return None if places is None else inputs.with_places(places)

    def leave(self, output: Any) -> None:
        inputs = self._state.inputs.pop()
        try:
            new = not self._state.inputs and self._add_active_hooks(self._state.stop_listener())
            if new and inputs is not None and output is not None:
                self._check_readings(inputs, thoroughly=True)  # once more, including the newly found hooks
        finally:
            self._network_forward.leave()
            self._clipping.leave(tree_leaves(output))

    def _add_active_hooks(self, hooks: list[object]) -> bool:
        new = [hook for hook in hooks if not any(hook is known for known in self._active_hooks)]
        self._active_hooks += new
        return bool(new)

    def find_layer_axes(self, layer: PrivateLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Axes:
        """Return the sample axes of a layer's call with a new signature."""
        inputs = next((held for held in self._state.inputs if held is not None), None)
        outside = inputs is None  # the layer is called directly, not by the network
        inputs = inputs or Inputs(args, kwargs, self._axis)
        tensors = tensors_in((args, kwargs))
        if inputs.samples:
            probe = NetworkProbe(layer.module) if outside else NetworkProbe(self._network, self._active_hooks)
            self._find_axes(probe, inputs, [layer] if outside else self._layers)
        found = layer.axes.get(signature(tensors))
        if found is None and inputs.samples == 0:
            return Axes((0,) * len(tensors), (0,))
        if found is None:
            raise MixesSamples(
                f"{layer.name} is called in a way that changes from run to run, so its samples can't be found: "
                "call it the same way in each pass"
            )
        return found

    def _check_modes(self, inputs: Inputs) -> None:
        kind = inputs.tensors[0].device.type
        if torch.is_autocast_enabled(kind):
            raise BadSetting(
                "a private network can't be trained under autocast: leave it out, or call it without gradients"
            )
        for name, norm in self._frozen_norms:
            if norm.training:
                raise MixesSamples(
                    f"{name} ({type(norm).__name__}) was in eval mode when the network was made private, and mixes "
                    f"samples now that it is in train mode: call .eval() on it after each train(), or replace it"
                )

    def _is_due(self, samples: int) -> bool:
        modes = tuple(module.training for module in self._modules)
        due = self._schedule.is_due()  # must be called once in each pass
        if modes not in self._modes:
            return True
        # A pass that a checkpoint repeats was checked before.
        return current_task() == NO_TASK and (due or samples > 2 * self._largest)

    def _check_pass(self, inputs: Inputs) -> None:
        modes = tuple(module.training for module in self._modules)
        check_not_transposed(inputs, self._clipping.pending_tensors())
        self._check_readings(inputs, thoroughly=modes not in self._modes)
        self._modes.add(modes)
        self._largest = max(self._largest, inputs.samples)

    def _check_readings(self, inputs: Inputs, thoroughly: bool) -> None:
        """Find the reading of the inputs in which samples don't mix, or raise the first reading's error.

        A tensor as long as the batch may carry samples or not; each possibility is a reading.
        """
        probe = NetworkProbe(self._network, self._active_hooks)
        refusal: PrivacyError | None = None
        known = None if thoroughly else self._reuse_reading(inputs)
        for reading in inputs.readings() if known is None else [known]:
            before = [dict(layer.axes) for layer in self._layers]
            try:
                if known is None:
                    self._find_axes(probe, reading, self._layers)
                MixingCheck(probe, self._clipping, reading, self._observable_modules()).check(thoroughly)
            except PrivacyError as reason:
                refusal = refusal or reason
                for layer, axes in zip(self._layers, before, strict=True):
                    layer.axes = axes
                continue
            self._known_places[signature(inputs.tensors)] = reading.places
            return
        assert refusal is not None
        raise refusal

    def _observable_modules(self) -> list[nn.Module]:
        """Return the modules whose outputs are observed: those that are neither inside a layer nor fused."""
        inside = self._fused | {
            id(part) for layer in self._layers for part in layer.module.modules() if part is not layer.module
        }
        return [module for module in self._modules if id(module) not in inside]

    def _find_axes(self, probe: NetworkProbe, inputs: Inputs, layers: Sequence[PrivateLayer]) -> None:
        found = find_axes(probe, inputs, [layer.module for layer in layers])
        for layer in layers:
            for call, axes in found.get(layer.module, {}).items():
                known = layer.axes.setdefault(call, axes)
                if known != axes:
                    raise MixesSamples(f"{layer.name}: its samples were along another axis before; keep the same axis")


class _EnterHook:
    """Calls `InputGuard.enter`. In a copy of the network it does nothing."""

    def __init__(self, guard: InputGuard) -> None:
        self._guard = guard

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._guard.enter(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _do_nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_do_nothing, ()


class _LeaveHook(_EnterHook):
    def __call__(self, network: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._guard.leave(output)


def _do_nothing(*args: Any) -> None:
    pass


def _make_do_nothing() -> Any:
    return _do_nothing
