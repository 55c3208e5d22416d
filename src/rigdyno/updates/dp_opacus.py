"""Private training by Opacus, PyTorch's own library for it: what ours is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rigdyno.contracts import Collective, Place, Requirement, Training, TrainStep
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

MOST_TIGHT = 20.0  # memory of the tight accountant grows with epsilon: beyond this it can take all there is


@dataclass(frozen=True, kw_only=True)
class DpOpacus(PrivateUpdate):
    """Differentially private training by Opacus."""

    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("torch"), Requirement("opacus", extra="peers"))
    start_seconds: ClassVar[float] = 3.0

    def prepare(self, training: Training, place: Place, collective: Collective) -> TrainStep:
        """As Opacus documents it for a loader of one's own: its module for gradients of each sample, its optimizer that
        clips and adds noise."""
        import torch
        from opacus.optimizers import DPOptimizer

        model = self.network(training)
        accountant = _Accountant()
        wrapped = _per_sample(model)
        batch_size, sample_rate = self._draw(training, place)
        optimizer = DPOptimizer(
            training.optimizer(list(model.parameters())),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=batch_size,
            generator=torch.Generator(place.device).manual_seed(place.seed),
        )
        if sample_rate is not None:
            optimizer.attach_step_hook(accountant.hook(sample_rate))
            training.epsilon = lambda: accountant.epsilon(self.delta)
        return private_step(training, wrapped, optimizer)

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


def _per_sample(model: torch.nn.Module) -> Any:
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    for objection in ModuleValidator.validate(model):
        raise refused(f"Opacus: {objection}", model)
    try:
        wrapped = GradSampleModule(model, loss_reduction="mean")
    except NotImplementedError as error:
        raise refused(f"Opacus: {error}", model) from error
    wrapped.forbid_grad_accumulation()
    return wrapped


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
