"""Test private training with Lightning, whose trainer passes a closure to the optimizer and prefetches batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from rigdyno.engines.dp import PrivacyEngine

lightning = pytest.importorskip("pytorch_lightning")

SAMPLES, BATCH, EPOCHS = 200, 20, 4


def make_data() -> TensorDataset:
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 6, generator=chance)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


class Classifier(lightning.LightningModule):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.5)
        self.automatic_optimization = not by_hand

    def training_step(self, batch, number):
        inputs, answers = batch
        loss = functional.cross_entropy(self.network(inputs), answers, reduction="mean")
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, number):
        inputs, answers = batch
        self.log("accuracy", (self.network(inputs).argmax(dim=1) == answers).float().mean())

    def configure_optimizers(self):
        return self.optimizer


def fit_privately(module: Classifier, folder, validation=None, **limits):
    engine = PrivacyEngine(generator=torch.Generator().manual_seed(1))
    _, _, loader = engine.make_private(
        module=module.network,
        optimizer=module.optimizer,
        data_loader=DataLoader(make_data(), batch_size=BATCH),
        noise_multiplier=0.8,
        max_grad_norm=1.0,
    )
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **limits)
    trainer.fit(module, loader, validation)
    return engine, trainer


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_trains_privately_and_accounts_for_it(by_hand, tmp_path):
    engine, trainer = fit_privately(
        Classifier(by_hand), tmp_path, DataLoader(make_data(), batch_size=50), max_epochs=EPOCHS
    )
    assert sum(run.steps for run in engine.ledger.spent) >= EPOCHS * SAMPLES // BATCH
    assert float(trainer.callback_metrics["accuracy"]) > 0.6


@pytest.mark.filterwarnings("ignore")
def test_gradient_clipping_by_the_trainer_has_no_effect(tmp_path):
    """Lightning clips between backward and step, where the sum is hidden: the released gradient stays unchanged."""
    module = Classifier(by_hand=False)
    start = module.network[0].weight.detach().clone()
    fit_privately(module, tmp_path, max_steps=3, gradient_clip_val=1e-6)
    assert float((module.network[0].weight.detach() - start).norm()) > 1e-3
