"""Private training with Opacus, PyTorch's library for it: the baseline of Rigdyno's own engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rigdyno.contracts import Collective, Requirement, Training, TrainStep, WorkerPlace
from rigdyno.updates.common.private import (
    NO_EPSILON,
    PrivateUpdate,
    make_loader,
    make_private_step,
    peek_batch_size,
    refusal_error,
    repeat_forever,
)

if TYPE_CHECKING:
    import torch

Mode = Literal["hooks", "functorch", "ew", "ghost"]

MOST_TIGHT = 20.0  # the tight accountant's memory grows with epsilon: above this it could exhaust the machine

NOT_IN_PLACE = "in-place activations were turned off: Opacus doesn't support them"


@dataclass(frozen=True, kw_only=True)
class DpOpacus(PrivateUpdate):
    """Differentially private training by Opacus."""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("opacus", extra="peers"))
    start_seconds: ClassVar[float] = 3.0

    mode: Mode = "hooks"  # how it computes per-sample gradients, or (ghost) only their norms

    def prepare(self, training: Training, place: WorkerPlace, collective: Collective) -> TrainStep:
        """Use Opacus as documented for a user's own loader: its module computes per-sample gradients, its optimizer
        clips and adds noise."""
        model = self.prepare_network(training)
        if _disable_in_place(model):
            training.notes = (*training.notes, NOT_IN_PLACE)
        accountant = _Accountant()
        wrapped = self._wrap_model(model)
        batch_size, sample_rate = self._set_batches(training, place)
        noise = self.choose_noise(training)
        optimizer = self._make_optimizer(training, place, batch_size, noise)
        if sample_rate is not None:
            optimizer.attach_step_hook(accountant.hook(sample_rate))
            training.epsilon = lambda: accountant.epsilon(self.delta)
            training.epoch_epsilon = self._make_epoch_epsilon(training, noise)
        step = self._make_step(training, wrapped, optimizer)
        return _handle_empty_batches(step, model, optimizer)

    def _make_epoch_epsilon(self, training: Training, noise: float) -> Callable[[], float] | None:
        """Return a function for the epsilon of one epoch, or None if dp_accounting isn't installed, the accountant
        of all other private updates."""
        import importlib.util

        samples = training.samples
        if samples is None or importlib.util.find_spec("dp_accounting") is None:
            return None
        return lambda: self.epoch_epsilon(samples, noise)

    def _make_optimizer(self, training: Training, place: WorkerPlace, batch_size: int, noise: float) -> Any:
        import torch
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

        kind = DPOptimizerFastGradientClipping if self.mode == "ghost" else DPOptimizer
        return kind(
            training.optimizer(list(training.model.parameters())),
            noise_multiplier=noise,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=batch_size,
            generator=torch.Generator(place.device).manual_seed(place.seed),
        )

    def _make_step(self, training: Training, wrapped: Any, optimizer: Any) -> TrainStep:
        if self.mode != "ghost":
            return make_private_step(training, wrapped, optimizer)
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        losses_of = _make_per_sample_loss(training.loss)
        own_loss = training.loss

        def loss(outputs: Any, targets: Any) -> Any:
            return DPTensorFastGradientClipping(wrapped, optimizer, losses_of(outputs, targets))

        training.loss = loss
        step = make_private_step(training, wrapped, optimizer)
        training.loss = own_loss
        return step

    def _set_batches(self, training: Training, place: WorkerPlace) -> tuple[int, float | None]:
        """Make `training` draw the same batches as dp_fast. Return their mean size and the sample rate, which is None
        without a data set."""
        from rigdyno.engines.dp import BadSetting, private_loader

        samples = training.samples
        if samples is None:
            training.batches, batch_size = peek_batch_size(training.batches)
            training.notes = (*training.notes, NO_EPSILON)
            return batch_size, None
        try:
            self.check_delta(samples)
        except BadSetting as error:
            raise refusal_error(error, training.model) from error
        loader = private_loader(make_loader(samples, place))
        training.batches = repeat_forever(loader)
        return samples.batch_size, loader.sample_rate

    def _wrap_model(self, model: torch.nn.Module) -> Any:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.utils import prepare_module
        from opacus.validators import ModuleValidator

        for objection in ModuleValidator.validate(model):
            raise refusal_error(f"Opacus: {objection}", model)
        options = {"max_grad_norm": self.max_grad_norm} if self.mode == "ghost" else {}
        try:
            wrapped = prepare_module(model, self.mode, loss_reduction="mean", **options)
        except NotImplementedError as error:
            raise refusal_error(f"Opacus: {error}", model) from error
        if type(wrapped) is GradSampleModule:
            wrapped.forbid_grad_accumulation()
        return wrapped


def _disable_in_place(model: torch.nn.Module) -> bool:
    """Turn off in-place activations, and return whether there were any."""
    in_place = [module for module in model.modules() if getattr(module, "inplace", False)]
    for module in in_place:
        module.inplace = False  # type: ignore[assignment]
    return bool(in_place)


def _make_per_sample_loss(loss: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a function for the losses of single samples, from a loss that averages over them."""
    import torch

    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
    except (ValueError, TypeError):
        takes_reduction = False
    if takes_reduction:
        return lambda outputs, targets: loss(outputs, targets, reduction="none")
    return lambda outputs, targets: torch.stack(
        [loss(outputs[row : row + 1], targets[row : row + 1]) for row in range(len(targets))]
    )


def _handle_empty_batches(step: TrainStep, model: torch.nn.Module, optimizer: Any) -> TrainStep:
    """Wrap the step so that an empty Poisson batch adds only noise: the sum of no gradients is zero. Opacus treats
    empty batches differently in each mode, and some modes fail."""
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step_or_noise(inputs: Any, targets: Any) -> Any:
        if len(targets):
            return step(inputs, targets)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad_sample = torch.zeros(0, *parameter.shape, device=parameter.device)  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return trained[0].new_zeros(())

    return step_or_noise


class _Accountant:
    """Combines two accountants of Opacus: the tight default (PRV), and Renyi DP, a looser and cheap bound."""

    def __init__(self) -> None:
        from opacus.accountants import create_accountant

        self._tight, self._renyi = create_accountant("prv"), create_accountant("rdp")

    def hook(self, sample_rate: float) -> Any:
        return self._tight.get_optimizer_hook_fn(sample_rate)

    def epsilon(self, delta: float) -> float:
        self._renyi.history = self._tight.history
        bound = float(self._renyi.get_epsilon(delta))
        return bound if bound > MOST_TIGHT else float(self._tight.get_epsilon(delta))
