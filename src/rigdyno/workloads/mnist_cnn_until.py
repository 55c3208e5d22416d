"""Trains the MNIST example's network to an accuracy.

It is a separate workload, so that the configuration of stored `mnist_cnn` cells doesn't change.
"""

from __future__ import annotations

from dataclasses import dataclass

from rigdyno.contracts.options import Natural, Share
from rigdyno.workloads.common.torch import check_target_accuracy
from rigdyno.workloads.mnist_cnn import MnistCnn, Variant


@dataclass(frozen=True, kw_only=True)
class MnistCnnUntil(MnistCnn):
    """Trains the MNIST example's small CNN to an accuracy."""

    dropout: Share = 0.5
    target_accuracy: Share = 0.0  # validation accuracy at which training ends; 0: it ends with its budget
    validation: Natural = 0  # number of training images kept apart for validation

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target_accuracy(self.target_accuracy, self.validation)

    def variant(self) -> Variant:
        return Variant(self.dropout, self.target_accuracy, self.validation)
