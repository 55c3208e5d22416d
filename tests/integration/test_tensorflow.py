"""Compare TensorFlow in separate processes with PyTorch in this one, and test its ranks over real sockets."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow_side as side
import torch
from msgspec.structs import replace

from driving import (
    PATIENCE_SECONDS,
    only_run,
    rigdyno,
    said_in_one_line,
    with_a_killed_rank,
)
from rigdyno import api, catalogue
from rigdyno.contracts import WorkerPlace
from rigdyno.schema.record import Completed, Failed, Skipped
from rigdyno.workloads import mnist_cnn
from rigdyno.workloads.datasets import mnist

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        catalogue.find_missing(catalogue.load("framework", "tensorflow").requires) is not None,
        reason="TensorFlow is not installed",
    ),
]
SIDE = str(Path(side.__file__))
MISSING = "import sys\nsys.modules['tensorflow'] = None\n"


def network():
    torch.manual_seed(1)
    return mnist_cnn._build_network().eval()  # no dropout


def batch():
    chance = torch.Generator().manual_seed(2)
    count = side.BATCH * side.STEPS
    return torch.randn(count, 1, 28, 28, generator=chance), torch.randint(10, (count,), generator=chance)


def start_side(*arguments):
    with open(f"{arguments[-1]}/{arguments[0]}{arguments[1] if len(arguments) > 2 else ''}.txt", "w") as log:  # noqa: PTH123
        return subprocess.Popen([sys.executable, SIDE, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT)


def free_endpoints(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return ",".join(endpoints)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run a single process and two ranks at once; return the folder with their results."""
    folder = tmp_path_factory.mktemp("tensorflow")
    images, labels = batch()
    weights = {f"w{number}": each.detach().numpy() for number, each in enumerate(network().parameters())}
    np.savez(folder / "given.npz", images=images.numpy(), labels=labels.numpy(), **weights)
    endpoints = free_endpoints(side.RANKS)
    processes = [
        start_side("alone", folder),
        *(start_side("rank", number, endpoints, folder) for number in range(side.RANKS)),
    ]
    codes = [process.wait(PATIENCE_SECONDS) for process in processes]
    logs = [path.read_text()[-2000:] for path in sorted(folder.glob("*.txt"))]
    assert codes[0] == 0, logs
    assert all((folder / f"rank{number}.npz").exists() for number in range(side.RANKS)), logs
    return folder


def read_arrays(folder, file, name):
    with np.load(folder / file) as found:
        numbers = sorted(int(key.removeprefix(name)) for key in found.files if key.removeprefix(name).isdecimal())
        return [found[f"{name}{number}"] for number in numbers]


def read_json(folder):
    return json.loads((folder / "alone.json").read_text())


def test_the_same_weights_give_the_same_outputs_loss_and_gradients(results):
    model, (images, labels) = network(), batch()
    outputs = model(images)
    loss = torch.nn.functional.nll_loss(outputs, labels)
    loss.backward()
    [theirs], [their_loss] = read_arrays(results, "alone.npz", "outputs"), read_arrays(results, "alone.npz", "loss")
    assert np.allclose(theirs, outputs.detach(), atol=1e-5)
    assert float(their_loss) == pytest.approx(loss.item(), abs=1e-5)
    gradients = read_arrays(results, "alone.npz", "gradient")
    for ours, other in zip(model.parameters(), gradients, strict=True):
        assert ours.grad.shape == other.shape
        assert np.allclose(ours.grad, other, atol=1e-5)
        assert np.abs(other).max() > 1e-4


def train_with_torch():
    """Return the parameters after the same steps with PyTorch."""
    model, (images, labels) = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=side.RATE, momentum=side.MOMENTUM)
    for some, their in zip(images.split(side.BATCH), labels.split(side.BATCH), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(model(some), their).backward()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def test_the_same_steps_give_the_same_weights(results):
    before = [each.detach().numpy() for each in network().parameters()]
    for theirs, ours, first in zip(
        read_arrays(results, "alone.npz", "trained"), train_with_torch(), before, strict=True
    ):
        assert np.allclose(theirs, ours, atol=1e-5)
        assert not np.allclose(theirs, first, atol=1e-4)


def test_two_ranks_with_half_batches_train_like_one_with_the_whole_batch(results):
    one, other = (read_arrays(results, f"rank{number}.npz", "trained") for number in range(side.RANKS))
    for ours, theirs, alone in zip(one, other, read_arrays(results, "alone.npz", "trained"), strict=True):
        assert np.array_equal(ours, theirs)
        assert np.allclose(ours, alone, atol=1e-5)


def test_ranks_agree_on_the_largest(results):
    for number in range(side.RANKS):
        [agreed] = read_arrays(results, f"rank{number}.npz", "agreed")
        assert agreed.tolist() == [11, 2**62]


def test_the_port_sets_threads_and_seed_and_recognises_out_of_memory(results):
    found = read_json(results)
    assert found["threads"] == 1
    assert found["versions"]["tensorflow"].startswith("2.")
    assert found["drawn"][0] == found["drawn"][1] != found["drawn"][2]
    assert found["out of memory"] == [True, True, False]
    assert found["torch"] is False  # two frameworks in one process compete for threads and memory


def test_the_workload_matches_that_of_torch(results, monkeypatch):
    found, whole = read_json(results), mnist.make_synthetic_images
    monkeypatch.setattr(mnist, "make_synthetic_images", lambda seed: whole(seed, train=500, test=200))
    ours = mnist_cnn.MnistCnn().build(WorkerPlace(device="cpu"))
    assert found["parameters"] == [ours.settled["parameters"], 1_199_882] == [21_840, 1_199_882]
    assert found["labels"] == [labels.tolist() for _, labels in islice(ours.batches, 8)]
    assert found["notes"][0] == list(ours.notes)
    assert "synthetic images" in found["notes"][0][0]


def test_training_lowers_the_loss(results):
    found = read_json(results)
    assert np.mean(found["losses"][-10:]) < 0.7 * np.mean(found["losses"][:5])
    assert found["accuracy"] > 0.5


def test_the_published_job_has_all_images_on_every_rank_and_no_evaluation(results):
    found = read_json(results)
    assert found["published"] == [128, 500, True]
    assert found["published losses"][-1] < found["published losses"][0]


def test_a_lost_rank_is_named_and_leaves_nothing_running(tmp_path):
    record = with_a_killed_rank("mnist_cnn_tensorflow", "--ranks", "2", "--budget", "10m", cwd=tmp_path)
    lost = "rank 1 was lost: SIGKILL: killed from outside"
    assert record.outcome == Failed(kind="signal", phase="measure", message=lost)


@pytest.fixture(scope="module")
def suite_run(tmp_path_factory):
    """Run the cluster suite with both frameworks, end to end."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "sitecustomize.py").write_text(MISSING.replace("tensorflow", "horovod"))
    arguments = ("--set", "devices=2", "--steps", "40", "--repeat", "1", "--idle", "1s")
    answer = rigdyno("run", "cluster", *arguments, cwd=folder, PYTHONPATH=_prepend_to_path(folder))
    assert answer.returncode == 0, answer.stderr
    assert "absl::InitializeLog" not in answer.stdout + answer.stderr  # messages of the framework are only in the log
    return api.load(only_run(folder).path)


def test_the_suite_runs_on_two_ranks(suite_run):
    ended = [record.outcome for record in suite_run.records]
    assert [type(outcome) for outcome in ended] == [Completed] * 2 + [Skipped] * 2 + [Completed] + [Skipped] * 2 + [
        Completed
    ]
    ran = [each for each in suite_run.measurements if each.job is not None]
    assert [each.spec.arrangement for each in ran] == ["ddp", "multiworker"]
    for job in (each.job for each in ran):
        assert (job.steps, job.items) == (20, 2 * 20 * 64)
        parts = (job.start, job.data, job.training, job.communication, job.evaluation)
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(job.seconds.value)
    assert all(each.usage is not None for each in ran)
    [log] = suite_run.path.glob("cells/*tensorflow*/rank1/log.txt")  # skipped cells have none
    assert "absl::InitializeLog" in log.read_text()


def test_without_horovod_its_rows_are_skipped_with_advice(suite_run):
    [times, *others] = [table for table in suite_run.view().tables if "ublished" not in table.title]
    rows = {row.entries["library"].text: row for row in times.rows}
    for library in ("PyTorch", "TensorFlow"):
        for way in ("Horovod (Gloo)", "Horovod (MPI)"):
            row = rows.pop(f"{library}, {way}")
            assert row.status == "SKIPPED"
            assert row.entries["seconds"].reason.endswith("horovod is not installed; try make horovod")
    assert list(rows) == ["PyTorch", "TensorFlow"]
    assert not any("Horovod" in row.entries["library"].text for table in others for row in table.rows)


def test_an_earlier_run_is_shown_in_a_table(suite_run, tmp_path):
    other = tmp_path / "laptop.20260101-000000"
    shutil.copytree(suite_run.path, other)
    for path in other.glob("cells/*/record.json"):
        path.write_text(path.read_text().replace(suite_run.path.name, other.name))
    plan = replace(suite_run.head.plan, beside=str(other))
    view = api.Run(suite_run.folder, replace(suite_run.head, plan=plan)).view()
    [table] = [table for table in view.tables if table.title == f"Beside it: {other.name}"]
    assert [row.entries["library"].text for row in table.rows] == ["PyTorch", "TensorFlow"]
    gone = replace(suite_run.head, plan=replace(plan, beside=str(tmp_path / "gone")))
    assert any("the earlier run isn't shown" in words for words in api.Run(suite_run.folder, gone).view().warnings)


def test_without_tensorflow_one_line_names_the_pip_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    answer = rigdyno("run", "mnist_cnn_tensorflow", cwd=tmp_path, PYTHONPATH=_prepend_to_path(tmp_path))
    assert answer.returncode == 2
    words = (
        "workload mnist_cnn_tensorflow can't run: tensorflow is not installed; try pip install 'rigdyno[tensorflow]'"
    )
    said_in_one_line((answer.stdout, answer.stderr), words, tmp_path)


def _prepend_to_path(folder):
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
