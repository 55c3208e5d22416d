"""Tests of the torch framework, and of the worker that uses it, over simulated devices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import ClassVar

import pytest

from rigdyno.arrangements.single import Single
from rigdyno.base.files import read_json, write_json
from rigdyno.contracts import Training, WorkerPlace
from rigdyno.frameworks.torch import Torch
from rigdyno.runner import worker as worker_module
from rigdyno.runner.device import memory_of, waiter_for
from rigdyno.runner.worker import Worker
from rigdyno.schema.layout import CellFolder, ParticipantFolder
from rigdyno.schema.record import Completed, DeviceMemory, Failed, WorkerReport
from rigdyno.schema.samples import read_rows
from rigdyno.schema.spec import Budget, Cell, RunSpec
from rigdyno.schema.system import Accelerator
from simulated_device import SimulatedTorch
from support import ManualClock, a_rank


@pytest.fixture
def torch():
    return SimulatedTorch(ManualClock(), devices=2)


@pytest.fixture
def port(torch):
    return Torch(api=torch)


class TestPort:
    def test_all_devices_are_reported_with_their_memory(self, port):
        card = Accelerator(kind="cuda", name="Simulated", memory_bytes=1000, capability="9.0")
        assert port.accelerators() == (card, card)
        assert port.versions() == {"torch": "99.0", "cuda": "99.1", "cudnn": "9", "cpu_capability": "AVX2"}

    def test_a_rocm_device_reports_its_architecture(self, port, torch):
        torch.version = SimpleNamespace(cuda=None, hip="6.2")
        assert {(card.kind, card.device_kind, card.capability) for card in port.accelerators()} == {
            ("rocm", "cuda", "gfx9")
        }

    def test_without_an_accelerator_torch_is_not_asked_for_one(self, port, torch):
        def raises():
            raise RuntimeError("Cannot access accelerator device when none is available.")

        torch.accelerator.is_available, torch.accelerator.current_accelerator = lambda: False, raises
        assert port.accelerators() == ()
        assert port.in_use() == ()

    def test_seed_and_threads_are_handed_on(self, port, torch):
        port.prepare(seed=3, threads=5)
        assert (torch.seed, torch.number_of_threads, port.threads()) == (3, 5, 5)

    def test_the_waiter_waits_for_the_given_device(self, port, torch):
        """It doesn't wait for the current device."""
        torch.queues[1].work(2.0)
        before_ns = torch.clock.now_ns()
        port.waiter("cuda:0")()
        assert torch.clock.now_ns() == before_ns
        port.waiter("cuda:1")()
        assert torch.clock.now_ns() == before_ns + 2_000_000_000

    def test_an_event_belongs_to_the_queue_of_its_device(self, port, torch):
        first = port.event("cuda:1")
        torch.queues[1].work(0.25)
        last = port.event("cuda:1")
        with pytest.raises(RuntimeError, match="not ready"):
            port.elapsed_ns(first, last)
        port.waiter("cuda:1")()
        assert port.elapsed_ns(first, last) == 250_000_000 + 10_000
        assert port.elapsed_ns(first, first) == 0

    def test_reversed_mps_events_have_no_time_between_them(self, port):
        def reversed_times(end):
            raise RuntimeError("End event 2 was not recorded after start event 1")

        assert port.elapsed_ns(SimpleNamespace(elapsed_time=reversed_times), object()) == 0

    def test_devices_in_use_are_those_with_memory(self, port, torch):
        assert port.in_use() == []
        torch.queues[1].allocate(1)
        assert port.in_use() == ["cuda:1"]

    @pytest.mark.parametrize("old", [False, True])
    def test_peak_memory_is_counted_from_the_last_reset(self, old):
        """Old versions have these functions in the device's module, not in torch.accelerator."""
        torch = SimulatedTorch(ManualClock(), devices=2, old=old)
        port, queue = Torch(api=torch), torch.queues[1]
        queue.allocate(700)
        queue.free(600)
        port.forget_peak_memory("cuda:1")
        assert port.memory("cuda:1") == DeviceMemory(peak_bytes=100, limit_bytes=1000)
        queue.allocate(300)
        queue.free(200)
        assert port.memory("cuda:1") == DeviceMemory(peak_bytes=400, limit_bytes=1000)
        assert port.memory("cuda") == DeviceMemory(peak_bytes=0, limit_bytes=1000)
        assert memory_of(port, ("cuda:0", "cuda:1")) == port.memory("cuda:1")
        assert memory_of(port, ("cpu",)) is None

    def test_a_device_whose_allocator_does_not_count_has_only_a_limit(self):
        """MPS has no such functions in its module, and torch.accelerator raises an error."""

        def not_supported(device):
            raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

        torch = SimulatedTorch(ManualClock(), kind="mps")
        torch.module = SimpleNamespace(recommended_max_memory=lambda: 500, current_allocated_memory=lambda: 1)
        port = Torch(api=torch)
        for ask in ("max_memory_allocated", "reset_peak_memory_stats"):
            setattr(torch.accelerator, ask, not_supported)
        port.forget_peak_memory("mps")
        assert port.memory("mps") == DeviceMemory(limit_bytes=500)
        assert port.in_use() == ("mps",)
        assert port.accelerators() == (Accelerator(kind="mps", name="Apple GPU", memory_bytes=500),)

    def test_out_of_memory_is_recognised_by_the_type_of_the_error(self, port, torch):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.queues[0].allocate(1001)
        assert port.is_out_of_memory(caught.value)

    def test_the_allocator_enforces_a_limit(self, port, torch):
        port.limit_memory("cuda:1", 400)
        torch.queues[1].allocate(400)
        with pytest.raises(torch.OutOfMemoryError):
            torch.queues[1].allocate(1)
        torch.queues[0].allocate(1000)

    def test_a_limit_above_the_devices_memory_changes_nothing(self, port, torch):
        port.limit_memory("cuda:0", 5000)
        torch.queues[0].allocate(1000)
        port.limit_memory("cpu", 1)

    def test_all_of_several_devices_are_waited_for(self, port, torch):
        torch.queues[0].work(1.0)
        torch.queues[1].work(3.0)
        last_ns = max(queue.empty_ns for queue in torch.queues)
        waiter_for(port, ("cuda:0", "cuda:1"))()
        assert torch.clock.now_ns() == last_ns
        assert waiter_for(port, ("cpu",)) is None


FORWARD, BACKWARD = 0.02, 0.03
BATCH, KEPT, ACTIVATIONS, BUILDING, EVALUATING = 4, 100, 250, 800, 900  # bytes, except the batch size


@dataclass(frozen=True)
class Scripted:
    """A workload and an update that use a simulated device's time and memory as a training does."""

    torch: SimulatedTorch
    leaks: bool = False
    framework: ClassVar[str] = "torch"
    unit: ClassVar[str] = "image"

    def build(self, place: WorkerPlace) -> Training:
        queue = self.torch.queue(place.device)
        queue.allocate(BUILDING)  # temporary memory while building
        queue.work(1.0)
        queue.free(BUILDING - KEPT)
        return Training(
            model=None,
            loss=lambda outputs, targets: None,
            optimizer=lambda parameters: None,
            batches=repeat((range(BATCH), range(BATCH))),
            accuracy=self.evaluate,
            phases=True,
        )

    def evaluate(self):
        queue = self.torch.queues[1]
        queue.allocate(EVALUATING - KEPT)
        queue.free(EVALUATING - KEPT)
        return 0.5

    def prepare(self, training, place, collective):
        queue, taken = self.torch.queue(place.device), []

        def step(inputs, targets):
            taken.append(1)
            queue.allocate(ACTIVATIONS)
            queue.work(FORWARD)
            training.mark("forward")
            queue.work(BACKWARD)
            training.mark("backward")
            if not self.leaks:
                queue.free(ACTIVATIONS)
            return 1.0 / len(taken)

        return step


def measured(torch, monkeypatch, tmp_path, **changes):
    scripted = Scripted(torch, **changes)
    monkeypatch.setattr(worker_module, "workload_of", lambda spec: scripted)
    monkeypatch.setattr(worker_module, "update_of", lambda spec: scripted)
    monkeypatch.setattr(worker_module, "framework_of", lambda workload: Torch(api=torch))
    monkeypatch.setattr(worker_module, "arrangement_of", lambda spec: Single())
    monkeypatch.setattr(worker_module, "find_loaded_frameworks", lambda: [Torch(api=torch)])
    monkeypatch.setattr(worker_module, "SystemClock", lambda: torch.clock)
    spec = RunSpec(workload="scripted", device="cuda:1", budget=Budget(seconds=3.0))
    worker = Worker(spec, a_rank(), ParticipantFolder(tmp_path), WorkerPlace(device="cuda:1"))
    return worker, worker.run()


def test_a_worker_measures_a_whole_training_on_a_simulated_device(torch, monkeypatch, tmp_path):
    _, outcome = measured(torch, monkeypatch, tmp_path)
    assert isinstance(outcome, Completed)
    assert outcome.quality.accuracy == 0.5
    _, rows = read_rows(tmp_path / "steps.rows")
    assert len(rows) > 20
    assert set(rows["end_ns"] - rows["start_ns"]) == {50_010_000}  # one launch, and the work
    assert set(rows["items"]) == {float(BATCH)}
    header, phases = read_rows(tmp_path / "phases.rows")
    spent = {
        name: set((phases["end_ns"] - phases["start_ns"])[phases["kind"] == kind])
        for kind, name in enumerate(header.kinds)
    }
    assert {name: lengths for name, lengths in spent.items() if lengths} == {
        "forward": {20_010_000},
        "backward": {30_000_000},
    }


def test_reported_memory_is_that_of_the_steps(torch, monkeypatch, tmp_path):
    """Building takes more memory, and so does the evaluation after the last step; neither counts."""
    worker, _ = measured(torch, monkeypatch, tmp_path)
    assert worker.device_memory == DeviceMemory(peak_bytes=KEPT + ACTIVATIONS, limit_bytes=1000)


def test_an_exhausted_device_fails_the_cell(torch, monkeypatch, tmp_path):
    """The fourth step exceeds the memory, and the error's message doesn't mention memory."""
    _, outcome = measured(torch, monkeypatch, tmp_path, leaks=True)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.phase) == ("out_of_memory", "warm-up")
    assert "tried to allocate 250 bytes" in outcome.message


def test_a_framework_that_does_not_load_fails_the_cell_with_a_report(torch, monkeypatch, tmp_path):
    """Its version can't be read either."""

    def broken(*arguments):
        raise OSError("libcudart.so.12: cannot open shared object file")

    cell = Cell(name="01-x", spec=RunSpec(workload="scripted"), participants=(a_rank(),))
    write_json(CellFolder(tmp_path).spec, cell)
    home = CellFolder(tmp_path).participant("rank0")
    home.path.mkdir()
    monkeypatch.setattr(worker_module, "workload_of", lambda spec: Scripted(torch))
    monkeypatch.setattr(
        worker_module, "framework_of", lambda workload: SimpleNamespace(prepare=broken, versions=broken, threads=broken)
    )
    assert worker_module.work(tmp_path, "rank0") == 1
    report = read_json(home.report, WorkerReport)
    assert report.outcome.message == "OSError: libcudart.so.12: cannot open shared object file"
    assert report.environment.framework == {}
