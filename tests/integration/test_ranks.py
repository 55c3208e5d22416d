"""Test real ranks: processes that communicate over sockets on the loopback interface."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.profiler import ProfilerActivity, profile, record_function

from driving import cell_folders, ended, none_left, only_run, rigdyno, started, steps_began, until, with_a_killed_rank
from rigdyno import api
from rigdyno.arrangements.ddp import Ddp, DdpRanks
from rigdyno.contracts import Training, WorkerPlace
from rigdyno.schema.record import Completed, Failed, Skipped
from rigdyno.updates.plain import Plain
from rigdyno.workloads.allreduce import AllReduce
from rigdyno.workloads.resnet50 import ResNet50

RANKS = 2
TINY = ["--set", "batch_size=2", "--set", "image_size=32", "--set", "classes=10", "--set", "learning_rate=0.001"]
SMALL = ("allreduce", "--ranks", "2", "--set", "largest=64000")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a function that gives the results of every rank by name. The ranks are started once for all."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(_one_rank, (str(folder),), nprocs=RANKS)
    said = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]
    return lambda question: [results[question] for results in said]


def _one_rank(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    place = WorkerPlace(device="cpu", rank=rank, world_size=RANKS)
    questions = {
        "half": _train_my_half,
        "losses": _losses,
        "losses again": _losses,
        "buffers": lambda place: _collectives(place, Ddp()),
        "no buffers": lambda place: _collectives(place, Ddp(broadcast_buffers=False)),
        "agreed": _agree,
        "summed": _sum_up,
    }
    torch.save({name: ask(place) for name, ask in questions.items()}, f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def batch():
    chance = torch.Generator().manual_seed(6)
    return torch.randn(8, 6, generator=chance), torch.randint(3, (8,), generator=chance)


def train(model, inputs, targets, place, arrangement=None):
    """Return the parameters after three steps."""
    training = Training(
        model=model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        batches=iter(()),
    )
    if arrangement is not None:
        training = arrangement._distribute(training, place, lambda phase: None)
    step = Plain().prepare(training, replace(place, world_size=1), DdpRanks("cpu"))
    for _ in range(3):
        step(inputs, targets)
    return [parameter.detach().clone() for parameter in model.parameters()]


def _train_my_half(place):
    inputs, targets = (tensor.chunk(RANKS)[place.rank] for tensor in batch())
    return train(network(), inputs, targets, place, Ddp())


def test_two_ranks_with_half_batches_train_like_one_with_the_whole_batch(results):
    expected = train(network(), *batch(), WorkerPlace(device="cpu"))
    for parameters in results("half"):
        for ours, whole in zip(parameters, expected, strict=True):
            assert torch.allclose(ours, whole, atol=1e-6)


def _losses(place):
    """Return the losses of a workload's batches, which differ between ranks."""
    training = ResNet50(batch_size=2, image_size=32, classes=10).build(place)
    training = Ddp()._distribute(training, place, lambda phase: None)
    step = Plain().prepare(training, replace(place, world_size=1), DdpRanks("cpu"))
    return [float(step(*next(training.batches))) for _ in range(2)]


def test_the_same_seed_repeats_the_losses_of_every_rank(results):
    once, again = results("losses"), results("losses again")
    assert once == again
    assert once[0] != once[1]


def _collectives(place, arrangement):
    """Return the collectives that started inside the forward pass, and inside the whole step."""
    model = nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    training = Training(model=model, loss=None, optimizer=None, batches=iter(()))
    shared = arrangement._distribute(training, place, lambda phase: None).model
    inputs, targets = batch()
    for _ in range(3):  # the first two are setup: DDP rebuilds its buckets in the second
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            with record_function("forward window"):
                outputs = shared(inputs)
            nn.functional.cross_entropy(outputs, targets).backward()
            distributed.barrier()
    events = profiled.events()
    window = next(event.time_range for event in events if event.name == "forward window")
    collectives = [event for event in events if event.name.startswith("gloo:") and "barrier" not in event.name]
    inside = [event.name for event in collectives if window.start <= event.time_range.start <= window.end]
    return inside, [event.name for event in collectives]


def test_without_buffers_the_forward_pass_sends_nothing(results):
    for inside, everywhere in results("buffers"):
        assert any("broadcast" in name for name in inside)
        assert any("all_reduce" in name for name in everywhere)
    for inside, everywhere in results("no buffers"):
        assert inside == []
        assert any("all_reduce" in name for name in everywhere)


def _agree(place):
    return DdpRanks("cpu").agree(10 + place.rank)


def test_ranks_agree_on_the_largest(results):
    assert results("agreed") == [11, 11]


def _sum_up(place):
    steps = AllReduce(largest=64_000).build(place)
    return {kind: step() for kind, step in steps.kinds.items()}, steps.check()


def test_all_reduce_counts_the_bus_bytes_as_nccl_tests_do(results):
    """The rates of n ranks sum to 2 (n - 1) / n times the size."""
    for items, correct in results("summed"):
        assert list(items) == ["4.00 kB", "16.0 kB", "64.0 kB"]
        one = 2 * (RANKS - 1) / RANKS * 64_000
        times = RANKS * items["64.0 kB"] / one
        assert times == pytest.approx(round(times))
        assert times >= 1  # small ones are repeated within a step
        assert correct is True


@pytest.fixture
def run_ranks(tmp_path):
    def run(*arguments):
        result = rigdyno("run", *arguments, cwd=tmp_path)
        return result, api.load(only_run(tmp_path).path)

    return run


def test_a_run_of_two_ranks_records_phases_of_both(run_ranks):
    result, run = run_ranks("resnet50", "--ranks", "2", *TINY, "--steps", "5")
    assert result.returncode == 0, result.stderr
    [measurement] = run.measurements
    assert isinstance(measurement.outcome, Completed)
    assert measurement.facts.settled["gradient_bytes"] > 90_000_000
    assert measurement.phases is not None
    assert abs(measurement.phases.explained - 1) < 0.02
    assert [set(rank) for rank in measurement.phases.by_rank.values()] == [
        {"data", "broadcast", "forward", "backward", "communication", "optimizer"}
    ] * 2
    first, second = (rows for _, rows in run.cells[0].steps())
    assert len(first) == len(second)
    assert {"rank0/log.txt", "rank1/log.txt", "node0/launcher.log"} <= set(run.cells[0].record.files)
    assert run.records[0].environment.threads == max(1, run.head.system.cpu.usable_cores // 2)


def test_ranks_are_started_from_python(tmp_path):
    options = {"largest": 64_000}
    run = api.run("allreduce", options=options, ranks=2, steps=5, seed=3, launcher="torchrun", out=tmp_path)
    [record] = run.records
    assert isinstance(record.outcome, Completed)
    assert (record.spec.world_size, record.spec.seed, record.spec.launcher) == (2, 3, "torchrun")
    assert record.spec.budget.max_steps == 5
    assert record.spec.options == options


def test_all_reduce_of_one_rank_is_skipped(run_ranks):
    result, run = run_ranks("allreduce", "--ranks", "1")
    assert result.returncode != 0
    outcome = run.records[0].outcome
    assert isinstance(outcome, Skipped)
    assert "try --ranks 2" in outcome.reason


def test_a_lost_rank_is_named_and_leaves_nothing_running(tmp_path):
    record = with_a_killed_rank(*SMALL, "--budget", "10m", cwd=tmp_path)
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert record.outcome == Failed(kind="signal", phase="measure", message=lost)
    assert "rank 1 was lost" in " ".join(rigdyno("report", cwd=tmp_path).stdout.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_a_killed_rigdyno(tmp_path, number):
    process = started("run", *SMALL, "--budget", "10m", cwd=tmp_path)
    until(lambda: steps_began(tmp_path / "runs", rows=20), "the ranks were stepping")
    (cell,) = cell_folders(tmp_path / "runs")
    os.kill(process.pid, number)
    ended(process)
    none_left(cell)
