"""The MNIST example's network, trained to an accuracy: a workload of its own, so that stored figures of the other keep
their configuration."""

from __future__ import annotations

from dataclasses import dataclass

from rigdyno.workloads._options import number_between
from rigdyno.workloads._torch import check_until
from rigdyno.workloads.mnist_cnn import MnistCnn, Variant


@dataclass(frozen=True, kw_only=True)
class MnistCnnUntil(MnistCnn):
    """Trains the MNIST example's small CNN to an accuracy."""

    dropout: float = 0.5
    until: float = 0.0  # the accuracy on validation images to stop at; 0: it ends with its budget
    validation: int = 0  # of the training images, kept apart for that

    def __post_init__(self) -> None:
        super().__post_init__()
        number_between("dropout", self.dropout, 0, 1)
        check_until(self.until, self.validation)

    def variant(self) -> Variant:
        return Variant(self.dropout, self.until, self.validation)
