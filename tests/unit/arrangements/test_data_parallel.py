"""Tests of data_parallel: planned as one process, measured on two simulated queues, trained like one device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from rigdyno.analyse.phases import phases_of
from rigdyno.arrangements import data_parallel
from rigdyno.arrangements.data_parallel import DataParallel
from rigdyno.arrangements.single import Single
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.contracts import CannotRun, Steps, Training, TrainingJob, WorkerPlace
from rigdyno.frameworks.torch import Torch
from rigdyno.plan.cells import refusal_of
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.runner import worker as worker_module
from rigdyno.runner.worker import Worker, place_of
from rigdyno.schema.layout import ParticipantFolder
from rigdyno.schema.record import Completed, DeviceMemory
from rigdyno.schema.samples import read_rows
from rigdyno.schema.spec import Budget, RunSpec, ranks_among
from rigdyno.schema.system import Accelerator
from rigdyno.updates.plain import Plain
from rigdyno.workloads.resnet50 import ResNet50
from simulated_device import LAUNCHING, Event, SimulatedTorch
from support import ManualClock, a_rank, a_system

PLENTY = Resources(available_bytes=10**12)


def cards(count, kind="cuda"):
    return a_system(accelerators=tuple(Accelerator(kind=kind, name="a card") for _ in range(count)))


def planned(system, device="cuda", **changes):
    return expand(Request(target="resnet50", arrangement="data_parallel", **changes), system, device, PLENTY)


class TestPlanning:
    def test_data_parallel_is_planned_as_one_process_for_all_devices(self):
        [cell] = planned(cards(4)).cells
        assert cell.refusal is None
        assert (cell.spec.world_size, cell.spec.launcher) == (4, "process")
        [rank] = ranks_among(cell.participants)
        place = place_of(cell, rank)
        assert (place.rank, place.world_size, place.devices) == (0, 1, 4)
        assert place.all_devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")

    def test_planned_memory_is_that_of_one_process(self):
        [cell] = planned(cards(4)).cells
        [alone] = expand(Request(target="resnet50"), cards(4), "cuda", PLENTY).cells
        assert cell.memory_bytes == alone.memory_bytes

    def test_ranks_sets_the_number_of_devices(self):
        [cell] = planned(cards(4, "rocm"), ranks=2).cells
        assert (cell.refusal, cell.spec.world_size) == (None, 2)

    def test_single_process_launchers_may_start_it(self):
        for launcher in ("process", "inline"):
            [cell] = planned(cards(2), ranks=2, launcher=launcher).cells
            assert (cell.refusal, cell.spec.launcher) == (None, launcher)

    @pytest.mark.parametrize(
        ("system", "changes", "words"),
        [
            (cards(1), {}, "is for two devices or more, and this is one; try --arrangement single"),
            (cards(1), {"ranks": 2}, "2 cuda devices are needed on a node, and there is one; try --ranks 1"),
            (cards(2), {"ranks": 3}, "3 cuda devices are needed on a node, and there are 2; try --ranks 2"),
            (a_system(), {"device": "cpu"}, "is for devices of CUDA or ROCm, and the device is cpu; try"),
            (cards(2, "xpu"), {"device": "xpu"}, "and the device is xpu; try --arrangement ddp"),
            (cards(2), {"device": "cuda:1"}, "counted from the first; try --device cuda"),
            (cards(2), {"target": "tensor_add"}, "this workload trains nothing; try --arrangement single"),
            (cards(2), {"nodes": 2, "rendezvous": "a:1"}, "is one process, and there are 2 nodes; try"),
        ],
    )  # fmt: skip
    def test_unsuitable_requests_are_refused_while_planning(self, system, changes, words):
        with pytest.raises(BadValue) as refused:
            expand(Request(**{"target": "resnet50", "arrangement": "data_parallel", **changes}), system, "cuda", PLENTY)
        assert words in str(refused.value)

    def test_another_update_than_plain_is_refused(self):
        spec = RunSpec(workload="resnet50", update="private", arrangement="data_parallel", device="cuda", world_size=2)
        words = "is for the update 'plain', not for 'private'; try --arrangement single"
        assert words in DataParallel().refuses(ResNet50(), Plain(), spec)

    def test_ddp_on_too_many_devices_is_refused(self):
        spec = RunSpec(workload="resnet50", arrangement="ddp", launcher="torchrun", device="cuda", world_size=4)
        assert refusal_of(spec, ResNet50(), cards(2), PLENTY).endswith("there are 2; try --ranks 2")
        assert refusal_of(spec, ResNet50(), cards(4), PLENTY) is None

    def test_the_scaling_suite_uses_it_instead_of_ddp(self):
        plan = expand(Request(target="scaling", arrangement="data_parallel"), cards(4), "cuda", PLENTY)
        found = {
            cell.spec.world_size: (cell.spec.arrangement, cell.spec.launcher, len(ranks_among(cell.participants)))
            for cell in plan.cells
            if cell.spec.workload == "resnet50" and cell.pair is None
        }
        several = ("data_parallel", "process", 1)
        assert found == {1: ("single", "process", 1), 2: several, 3: several, 4: several}

    def test_the_device_suite_refuses_an_arrangement(self):
        with pytest.raises(UsageError, match="suite device chooses its own arrangement; leave out --arrangement"):
            expand(Request(target="device", arrangement="data_parallel"), cards(2), "cuda", PLENTY)


SCATTER, BROADCAST, FORWARD, GATHER, LOSS, BACKWARD, REDUCE, OPTIMIZER = (
    *(0.002, 0.004, (0.010, 0.025), 0.003, 0.001),
    *((0.030, 0.040), 0.006, 0.002),
)
BATCH = 8


class SimulatedDataParallel:
    """torch.nn.DataParallel as documented, over two queues: a copy between devices occupies both."""

    queues: ClassVar[list] = []
    clock: ClassVar[ManualClock]

    def __init__(self, module, device_ids):
        assert device_ids == [0, 1]

    def __call__(self, inputs):
        parts = self.scatter((inputs,), {}, [0, 1])
        replicas = self.replicate(None, [0, 1])
        return self.gather(self.parallel_apply(replicas, parts, None), 0)

    def copied(self, source, target, seconds):
        self.queues[source].work(seconds)
        arrived = Event(self.clock, enable_timing=False)
        arrived.record(self.queues[source])
        self.queues[target].wait_event(arrived)

    def scatter(self, inputs, kwargs, device_ids):
        self.copied(0, 1, SCATTER)
        return inputs

    def replicate(self, module, device_ids):
        self.copied(0, 1, BROADCAST)

    def parallel_apply(self, replicas, inputs, kwargs):
        for queue, seconds in zip(self.queues, FORWARD, strict=True):
            queue.work(seconds)

    def gather(self, outputs, output_device):
        self.copied(1, 0, GATHER)


@dataclass(frozen=True)
class Scripted:
    """A workload and an update on two simulated devices; the second device needs more memory."""

    torch: SimulatedTorch
    framework: ClassVar[str] = "torch"
    unit: ClassVar[str] = "image"

    def build(self, place: WorkerPlace) -> Training:
        assert place.device == "cuda:0"
        self.torch.queues[0].work(1.0)
        model = SimpleNamespace(modules=lambda: [], state_dict=dict)
        return Training(
            model=model, loss=None, optimizer=None, batches=repeat((range(BATCH), range(BATCH))), phases=True
        )

    def prepare(self, training, place, collective):
        first, second = self.torch.queues

        def step(inputs, targets):
            assert len(inputs) == len(targets) == 2 * BATCH
            second.allocate(300)
            training.model(inputs)
            first.work(LOSS)
            training.mark("forward")
            first.work(BACKWARD[0])
            second.work(BACKWARD[1])
            training.model.copied(1, 0, REDUCE)
            training.mark("backward")
            first.work(OPTIMIZER)
            training.mark("optimizer")
            second.free(300)
            return 1.0

        return step


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """Run a whole worker over two simulated devices."""
    clock = ManualClock()
    api = SimulatedTorch(clock, devices=2)
    monkeypatch.setattr(SimulatedDataParallel, "queues", api.queues)
    monkeypatch.setattr(SimulatedDataParallel, "clock", clock, raising=False)
    api.nn, api.cat = SimpleNamespace(DataParallel=SimulatedDataParallel), lambda parts: list(chain(*parts))
    scripted = Scripted(api)
    monkeypatch.setattr(data_parallel, "_torch", lambda: api)
    for name, thing in {"workload": scripted, "update": scripted, "arrangement": DataParallel()}.items():
        monkeypatch.setattr(worker_module, f"{name}_of", lambda spec, thing=thing: thing)
    monkeypatch.setattr(worker_module, "framework_of", lambda workload: Torch(api=api))
    monkeypatch.setattr(worker_module, "SystemClock", lambda: clock)
    spec = RunSpec(workload="w", arrangement="data_parallel", world_size=2, device="cuda", budget=Budget(seconds=5.0))
    worker = Worker(spec, a_rank(), ParticipantFolder(tmp_path), WorkerPlace(device="cuda", devices=2))
    assert isinstance(worker.run(), Completed)
    return worker, read_rows(tmp_path / "steps.rows"), read_rows(tmp_path / "phases.rows")


# The slower device decides: its passes begin once the replicas are there, and end with gather and reduce.
EXPECTED = {
    "scatter": SCATTER,
    "broadcast": BROADCAST,
    "forward": FORWARD[1] + LOSS,
    "gather": GATHER,
    "backward": BACKWARD[1] - (LOSS + GATHER) + GATHER + REDUCE,
    "optimizer": OPTIMIZER,
}


def test_phases_are_timed_on_two_queues(simulated):
    _, _, (header, rows) = simulated
    spent = {}
    for kind, name in enumerate(header.kinds):
        lengths = {int(row["end_ns"] - row["start_ns"]) for row in rows[rows["kind"] == kind]}
        spent[name] = sum(lengths) / 1e9  # the two forward phases differ
    assert {name for name, seconds in spent.items() if seconds > 1e-3} == set(EXPECTED)
    for name, seconds in EXPECTED.items():
        assert spent[name] == pytest.approx(seconds, abs=5 * LAUNCHING), name


def test_phases_add_up_to_the_step(simulated):
    worker, (_, steps), (header, rows) = simulated
    assert set(steps["items"]) == {2.0 * BATCH}
    timed = {name: rows[rows["kind"] == kind] for kind, name in enumerate(header.kinds)}
    found = phases_of({0: steps}, {0: {name: part for name, part in timed.items() if len(part)}}, "image")
    assert found.explained == pytest.approx(1.0, abs=1e-3)
    forward = sum(EXPECTED[name] for name in ("scatter", "broadcast", "forward", "gather"))
    assert found.forward.value == pytest.approx(2 * BATCH / forward, rel=1e-2)
    assert np.ptp(steps["end_ns"] - steps["start_ns"]) == 0
    assert worker.facts.notes == ("a step takes a batch for each of 2 devices, joined on the first one",)


def test_device_memory_is_that_of_the_fullest_device(simulated):
    worker, _, _ = simulated
    assert worker.device_memory == DeviceMemory(peak_bytes=300, limit_bytes=1000)


# The real torch.nn.DataParallel, with stand-ins for the four functions that need devices.


def batches():
    chance = torch.Generator().manual_seed(3)
    made = [(torch.randn(4, 6, generator=chance), torch.randint(3, (4,), generator=chance)) for _ in range(6)]
    return cycle(made)


def in_twos(given):
    for inputs, targets in given:
        more_inputs, more_targets = next(given)
        yield torch.cat([inputs, more_inputs]), torch.cat([targets, more_targets])


def a_training(given):
    torch.manual_seed(7)
    return Training(
        model=torch.nn.Linear(6, 3),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batches=given,
    )


def trained(arrangement, built, place, steps=5):
    """Return the trained parameters, and the marks."""
    meter = SimpleNamespace(more=iter([True] * steps + [False]).__next__, step=lambda items: None)
    marks = []
    job = TrainingJob(
        SimpleNamespace(build=lambda place: built),
        Plain(),
        place,
        lambda training, collective: meter,
        lambda training: marks.append,
    )
    arrangement.run(job)
    return [parameter.detach().clone() for parameter in built.model.parameters()], marks


@pytest.fixture
def _two_devices_on_the_cpu(monkeypatch):
    functions = sys.modules["torch.nn.parallel.data_parallel"]  # the package has a function of that name

    def made(self, module, device_ids):
        torch.nn.Module.__init__(self)
        self.module, self.device_ids, self.dim, self.output_device = module, device_ids, 0, 0
        self.src_device_obj = torch.device("cpu")

    monkeypatch.setattr(torch.nn.DataParallel, "__init__", made)
    monkeypatch.setattr(
        functions, "scatter_kwargs",
        lambda inputs, kwargs, ids, dim: ([(part,) for part in inputs[0].chunk(2)], ({}, {})),
    )  # fmt: skip
    monkeypatch.setattr(functions, "replicate", lambda module, ids, detach: [module, module])
    monkeypatch.setattr(
        functions, "parallel_apply",
        lambda replicas, inputs, kwargs, ids: [each(*part) for each, part in zip(replicas, inputs, strict=True)],
    )  # fmt: skip
    monkeypatch.setattr(functions, "gather", lambda outputs, device, dim: torch.cat(outputs))
    monkeypatch.setattr(data_parallel, "_make_first_wait", lambda devices: None)


@pytest.mark.usefixtures("_two_devices_on_the_cpu")
def test_two_devices_train_like_one_with_batches_of_twice_the_size(one_thread):
    of_two, marks = trained(DataParallel(), a_training(batches()), WorkerPlace(device="cuda", devices=2))
    of_one, _ = trained(Single(), a_training(in_twos(batches())), WorkerPlace(device="cpu"))
    for ours, theirs in zip(of_two, of_one, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert marks[:9] == ["", "data", "scatter", "broadcast", "forward", "gather", "forward", "backward", "optimizer"]


def test_a_model_with_a_replaced_forward_is_refused(one_thread):
    for change in (lambda model: setattr(model, "forward", model.forward), torch.nn.Module.compile):
        built = a_training(batches())
        change(built.model)
        with pytest.raises(CannotRun, match="all replicas would call that of the first device"):
            trained(DataParallel(), built, WorkerPlace(device="cuda", devices=2))


def test_a_workload_without_training_is_refused_in_the_worker():
    with pytest.raises(CannotRun, match="trains no model"):
        trained(DataParallel(), Steps(kinds={}), WorkerPlace(device="cuda", devices=2))
