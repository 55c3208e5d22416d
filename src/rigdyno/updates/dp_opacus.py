"""Private training by Opacus, PyTorch's own library for it: what ours is held against."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rigdyno.contracts import Collective, Place, Requirement, Training, TrainStep
from rigdyno.errors import BadValue, suggestion
from rigdyno.updates._private import (
    NO_EPSILON,
    PrivateUpdate,
    endless,
    loader_of,
    looked_ahead,
    private_step,
    refused,
)

if TYPE_CHECKING:
    import torch

Mode = Literal["hooks", "functorch", "ew", "ghost"]

MOST_TIGHT = 20.0  # memory of the tight accountant grows with epsilon: beyond this it can take all there is
NOT_IN_PLACE = "activations in place were turned off: Opacus can't follow them"


@dataclass(frozen=True, kw_only=True)
class DpOpacus(PrivateUpdate):
    """Differentially private training by Opacus."""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("opacus", extra="peers"))
    start_seconds: ClassVar[float] = 3.0

    mode: Mode = "hooks"  # how it comes to gradients of each sample, or (ghost) to their norms alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in get_args(Mode):
            raise BadValue(
                f"update.mode can't be {self.mode!r}; {suggestion(str(self.mode), get_args(Mode))}",
                key="set.update.mode",
            )

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
        """As Opacus documents it for a loader of one's own: its module for gradients of each sample, its optimizer that
        clips and adds noise."""
        model = self.network(training)
        if _without_in_place(model):
            training.notes = (*training.notes, NOT_IN_PLACE)
        accountant = _Accountant()
        wrapped = self._wrapped(model)
        batch_size, sample_rate = self._draw(training, place)
        noise = self.noise(training)
        optimizer = self._optimizer(training, place, batch_size, noise)
        if sample_rate is not None:
            optimizer.attach_step_hook(accountant.hook(sample_rate))
            training.epsilon = lambda: accountant.epsilon(self.delta)
            training.epoch_epsilon = self._of_an_epoch(training, noise)
        step = self._step(training, wrapped, optimizer)
        return _or_noise_alone(step, model, optimizer)

    def _of_an_epoch(self, training: Training, noise: float) -> Callable[[], float] | None:
        """Where our accountant is installed, which is that of the others too."""
        import importlib.util

        samples = training.samples
        if samples is None or importlib.util.find_spec("dp_accounting") is None:
            return None
        return lambda: self.epoch_epsilon(samples, noise)

    def _optimizer(self, training: Training, place: Place, batch_size: int, noise: float) -> Any:
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

    def _step(self, training: Training, wrapped: Any, optimizer: Any) -> TrainStep:
        if self.mode != "ghost":
            return private_step(training, wrapped, optimizer)
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        losses_of = _per_sample_loss(training.loss)
        own_loss = training.loss

        def loss(outputs: Any, targets: Any) -> Any:
            return DPTensorFastGradientClipping(wrapped, optimizer, losses_of(outputs, targets))

        training.loss = loss
        step = private_step(training, wrapped, optimizer)
        training.loss = own_loss
        return step

    def _draw(self, training: Training, place: Place) -> tuple[int, float | None]:
        """The same batches as dp_fast draws. How many samples they have on average, and with which probability each of
        the data set is in one: None where there is no data set."""
        from rigdyno.engines.dp import BadSetting, private_loader

        samples = training.samples
        if samples is None:
            training.batches, batch_size = looked_ahead(training.batches)
            training.notes = (*training.notes, NO_EPSILON)
            return batch_size, None
        try:
            self.check_delta(samples)
        except BadSetting as error:
            raise refused(error, training.model) from error
        drawn = private_loader(loader_of(samples, place))
        training.batches = endless(drawn)
        return samples.batch_size, drawn.sample_rate

    def _wrapped(self, model: torch.nn.Module) -> Any:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.utils import prepare_module
        from opacus.validators import ModuleValidator

        for objection in ModuleValidator.validate(model):
            raise refused(f"Opacus: {objection}", model)
        options = {"max_grad_norm": self.max_grad_norm} if self.mode == "ghost" else {}
        try:
            wrapped = prepare_module(model, self.mode, loss_reduction="mean", **options)
        except NotImplementedError as error:
            raise refused(f"Opacus: {error}", model) from error
        if type(wrapped) is GradSampleModule:
            wrapped.forbid_grad_accumulation()
        return wrapped


def _without_in_place(model: torch.nn.Module) -> bool:
    found = [module for module in model.modules() if getattr(module, "inplace", False)]
    for module in found:
        module.inplace = False  # type: ignore[assignment]
    return bool(found)


def _per_sample_loss(loss: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Of the mean over samples, the losses that it is the mean of."""
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


def _or_noise_alone(step: TrainStep, model: torch.nn.Module, optimizer: Any) -> TrainStep:
    """Poisson batches may be empty. Opacus' own way with them differs from mode to mode, and some fail: the sum of no
    gradients is zero, and gets noise like any other."""
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def whole(inputs: Any, targets: Any) -> Any:
        if len(targets):
            return step(inputs, targets)
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad_sample = torch.zeros(0, *parameter.shape, device=parameter.device)  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return trained[0].new_zeros(())

    return whole


class _Accountant:
    """Opacus' own two: the tight one that it uses by default, and Renyi's, a looser bound that is always cheap."""

    def __init__(self) -> None:
        from opacus.accountants import create_accountant

        self._tight, self._renyi = create_accountant("prv"), create_accountant("rdp")

    def hook(self, sample_rate: float) -> Any:
        return self._tight.get_optimizer_hook_fn(sample_rate)

    def epsilon(self, delta: float) -> float:
        self._renyi.history = self._tight.history
        bound = float(self._renyi.get_epsilon(delta))
        return bound if bound > MOST_TIGHT else float(self._tight.get_epsilon(delta))
