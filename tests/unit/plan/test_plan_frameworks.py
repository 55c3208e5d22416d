"""All parts of a cell must be of one framework; each refusal names the parts and what to try."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from rigdyno import catalogue
from rigdyno.plan.build import arrangement_of_ranks
from rigdyno.plan.cells import refusal_of
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import RunSpec
from rigdyno.workloads.mnist_cnn import MnistCnn
from rigdyno.workloads.tensor_add import TensorAdd
from support import a_system

PLENTY = Resources(available_bytes=10**12)
ALONE, TWO = RunSpec(workload="w"), RunSpec(workload="w", arrangement="ddp", launcher="torchrun", world_size=2)


@dataclass(frozen=True, kw_only=True)
class Trained(MnistCnn):
    framework: ClassVar[str] = "other"


@dataclass(frozen=True, kw_only=True)
class Repeated(TensorAdd):
    framework: ClassVar[str] = "other"


@dataclass(frozen=True, kw_only=True)
class OfAny(TensorAdd):
    framework: ClassVar[str] = "any"


def refused(spec, workload):
    return refusal_of(spec, workload, a_system(), PLENTY)


@pytest.fixture
def _another_framework(monkeypatch):
    names = {kind: catalogue.names(kind) for kind in catalogue.KINDS}
    names["framework"] += ("other",)
    monkeypatch.setattr(catalogue, "names", names.__getitem__)


@pytest.mark.usefixtures("_another_framework")
def test_an_update_of_another_framework_is_refused():
    words = "the update 'plain' is for torch and tensorflow, and this workload is for other; no update for other is"
    assert refused(ALONE, Trained()).startswith(words)


@pytest.mark.usefixtures("_another_framework")
def test_what_trains_nothing_needs_no_update():
    assert refused(ALONE, Repeated()) is None


@pytest.mark.usefixtures("_another_framework")
def test_an_arrangement_of_another_framework_is_refused():
    for workload in (Trained(), Repeated()):
        words = "the arrangement 'ddp' is for torch, and this workload is for other; try --arrangement single"
        assert refused(TWO, workload) == words


def test_a_part_for_any_framework_goes_with_all():
    assert refused(ALONE, OfAny()) is None
    assert refused(TWO, OfAny()) is None
    assert refused(TWO, MnistCnn()) is None


def test_an_unknown_framework_is_refused():
    words = "this workload needs the framework 'other', which is not installed; docs/adding.md tells how to add one"
    assert refused(ALONE, Repeated()) == words


def test_ranks_get_the_default_arrangement_of_their_framework():
    found = {name: arrangement_of_ranks(name) for name in ("mnist_cnn", "mnist_cnn_tensorflow", "idle", "allreduce")}
    assert found == {
        "mnist_cnn": "ddp", "mnist_cnn_tensorflow": "multiworker", "idle": "ddp", "allreduce": "ddp",
    }  # fmt: skip
