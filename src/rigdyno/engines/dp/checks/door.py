"""The network's door: every call of it begins and ends here. What comes in is looked at before it may be trained on.

each pass       its number of samples; no autocast; norms that were frozen still are
the first       which axis of each layer's inputs is that of the samples, and that samples don't mix: both by running
again           in another mode of the network, with a batch twice as large as any before, and at random
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from rigdyno.engines.dp.checks.axes import Axes, Signature, establish, signature, tensors_in
from rigdyno.engines.dp.checks.mixing import Mixing, Turns
from rigdyno.engines.dp.checks.probing import Inputs, Listening, Probe
from rigdyno.engines.dp.clipping import Clipping
from rigdyno.engines.dp.errors import BadSetting, MixesSamples, PrivacyError
from rigdyno.engines.dp.examine import may_mix, refuse_transposed
from rigdyno.engines.dp.forwards import Whole
from rigdyno.engines.dp.layers import Layer
from rigdyno.engines.dp.passes import NO_TASK, current_task


class _Here(threading.local):
    def __init__(self) -> None:
        self.inputs: list[Inputs | None] = []
        self.listening: Listening | None = None

    def stop_listening(self) -> list[object]:
        listening, self.listening = self.listening, None
        return [] if listening is None else listening.stop()


class Door:
    def __init__(
        self,
        network: nn.Module,
        clipping: Clipping,
        layers: Sequence[Layer],
        batch_first: bool,
        fused: Sequence[nn.Module] = (),
    ) -> None:
        """`fused`: modules that are run together with others. They aren't listened to, which would run them apart, and
        take more memory than training itself."""
        self._network, self._clipping, self._layers = network, clipping, layers
        self._fused = {id(module) for module in fused}
        self._axis = 0 if batch_first else 1
        self._modules = list(network.modules())
        self._frozen_norms = [(name, norm) for name, norm in network.named_modules() if may_mix(norm)]
        self._modes: set[tuple[bool, ...]] = set()
        self._largest = 0
        self._places: dict[Signature, dict[int, int]] = {}  # which inputs carry samples, by the kind of call
        self._turns = Turns()
        self._here = _Here()
        self._speaking: list[object] = []  # hooks of the user's that change what the network computes
        for layer in layers:
            layer.door = self
        self._whole = Whole(network)
        self._hooks: list[RemovableHandle] = [
            network.register_forward_pre_hook(_Entrance(self), with_kwargs=True),
            network.register_forward_hook(_Exit(self), always_call=True),
        ]

    def undo(self) -> None:
        self._whole.undo()
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            layer.door = None

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._whole.enter()
        self._clipping.enter()
        self._here.inputs.append(None)
        if not torch.is_grad_enabled():
            return
        inputs = Inputs(args, kwargs, self._axis)
        self._here.inputs[-1] = self._known(inputs) or inputs
        self._refuse_modes(inputs)
        if self._clipping.private and len(self._here.inputs) == 1 and inputs.samples > 1 and self._due(inputs.samples):
            self._look(inputs)
            self._here.listening = Listening(self._modules)
        self._clipping.join(inputs.samples, (self._known(inputs) or inputs).by_sample())

    def _known(self, inputs: Inputs) -> Inputs | None:
        """As calls of this kind were read before."""
        places = self._places.get(signature(inputs.tensors))
        return None if places is None else inputs.read(places)

    def leave(self, answer: Any) -> None:
        inputs = self._here.inputs.pop()
        try:
            new = not self._here.inputs and self._heard(self._here.stop_listening())
            if new and inputs is not None and answer is not None:
                self._read(inputs, thoroughly=True)  # once more, with the hooks that take part
        finally:
            self._whole.leave()
            self._clipping.leave(tree_leaves(answer))

    def _heard(self, hooks: list[object]) -> bool:
        new = [hook for hook in hooks if not any(hook is known for known in self._speaking)]
        self._speaking += new
        return bool(new)

    def axes(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Axes:
        """Of a call of a layer whose like wasn't met before."""
        inputs = next((held for held in self._here.inputs if held is not None), None)
        past = inputs is None  # the layer is called past the network
        inputs = inputs or Inputs(args, kwargs, self._axis)
        tensors = tensors_in((args, kwargs))
        if inputs.samples:
            probe = Probe(layer.module) if past else Probe(self._network, self._speaking)
            self._establish(probe, inputs, [layer] if past else self._layers)
        found = layer.axes.get(signature(tensors))
        if found is None and inputs.samples == 0:
            return Axes((0,) * len(tensors), (0,))
        if found is None:
            raise MixesSamples(
                f"{layer.name} is called in a way that changes from run to run, so that its samples can't be told: "
                "call it in each pass alike"
            )
        return found

    def _refuse_modes(self, inputs: Inputs) -> None:
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

    def _due(self, samples: int) -> bool:
        modes = tuple(module.training for module in self._modules)
        due = self._turns.due()  # each pass counts
        if modes not in self._modes:
            return True
        # Where a checkpoint repeats a pass, that pass was looked at already.
        return current_task() == NO_TASK and (due or samples > 2 * self._largest)

    def _look(self, inputs: Inputs) -> None:
        modes = tuple(module.training for module in self._modules)
        refuse_transposed(inputs, self._clipping.waiting())
        self._read(inputs, thoroughly=modes not in self._modes)
        self._modes.add(modes)
        self._largest = max(self._largest, inputs.samples)

    def _read(self, inputs: Inputs, thoroughly: bool) -> None:
        """A tensor as long as the batch may carry samples or not. That reading is right in which samples don't mix."""
        probe = Probe(self._network, self._speaking)
        refusal: PrivacyError | None = None
        known = None if thoroughly else self._known(inputs)
        for reading in inputs.readings() if known is None else [known]:
            before = [dict(layer.axes) for layer in self._layers]
            try:
                if known is None:
                    self._establish(probe, reading, self._layers)
                Mixing(probe, self._clipping, reading, self._open_modules()).refuse(thoroughly)
            except PrivacyError as reason:
                refusal = refusal or reason
                for layer, axes in zip(self._layers, before, strict=True):
                    layer.axes = axes
                continue
            self._places[signature(inputs.tensors)] = reading.places
            return
        assert refusal is not None
        raise refusal

    def _open_modules(self) -> list[nn.Module]:
        """Those that aren't inside of a layer, nor fused: what these hand on is heard."""
        inside = self._fused | {
            id(part) for layer in self._layers for part in layer.module.modules() if part is not layer.module
        }
        return [module for module in self._modules if id(module) not in inside]

    def _establish(self, probe: Probe, inputs: Inputs, layers: Sequence[Layer]) -> None:
        found = establish(probe, inputs, [layer.module for layer in layers])
        for layer in layers:
            for call, axes in found.get(layer.module, {}).items():
                known = layer.axes.setdefault(call, axes)
                if known != axes:
                    raise MixesSamples(f"{layer.name}: its samples were along another axis before; keep them along one")


class _Entrance:
    """In a copy of the network it does nothing."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._door.enter(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _open

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, ()


class _Exit(_Entrance):
    def __call__(self, network: nn.Module, args: tuple[Any, ...], answer: Any) -> None:
        self._door.leave(answer)


def _open(*args: Any) -> None:
    pass


def _opened() -> Any:
    return _open
