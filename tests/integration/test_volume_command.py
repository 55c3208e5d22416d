"""Test `rigdyno run unet3d`, `infer` and `forecast-volume` from outside: training, inference, scores and wrong use."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import h5py
import msgspec
import numpy as np
import psutil
import pytest

from driving import PATIENCE_SECONDS, ended, here, said_in_one_line, started, steps_began, until
from rigdyno import api
from rigdyno.engines.segmentation.synthetic import write_synthetic
from rigdyno.plan.request import Request
from rigdyno.runner.orchestrate import create_run
from rigdyno.schema.spec import Budget

ROOT = Path(__file__).parents[2]
TINY = ("--set", "features=4,8", "--set", "patch=4x18x18", "--set", "learning_rate=0.01")
BLOCKS = ("--set", "features=4,8", "--set", "volume=16x60x60", "--set", "block=6x16x16", "--set", "halo=1x1x1")


def test_the_documented_example_works(tmp_path, monkeypatch):
    """Train on a part of a small synthetic volume, predict all of it, and score the rest."""
    text = (ROOT / "docs" / "volume.md").read_text()
    section = text.partition("## From a volume to a score")[2].partition("\n## ")[0]
    make, score = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shell,) = re.findall(r"```\n(rigdyno.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(make.replace("(32, 240, 360)", "(12, 60, 120)"), {})
    train, infer = (line.split() for line in shell.replace("\\\n", " ").splitlines())
    train = ["features=4,8" if word.startswith("features=") else word for word in train[1:]]
    train += [*TINY[2:], "--set", "workers=1", "--steps", "120"]
    answer = here(*train, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    answer = here(*infer[1:], "--block", "6,18,18", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    names: dict[str, object] = {}
    exec(score, names)
    assert names["accuracy"] > 0.75


def test_a_volume_can_be_forecast_from_a_run_of_its_blocks(tmp_path):
    answer = here("run", "unet3d_inference", *BLOCKS, "--steps", "12", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    answer = here(
        "forecast-volume", "--voxels", "8.1e12", "--devices", "1,4", "--price-per-hour", "2", "--json", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    view = json.loads(answer.stdout)
    volumes, one, _, four, _ = view["tables"]
    assert volumes["rows"][0]["entries"]["voxels"]["value"] == 8.1e12
    hours = one["rows"][0]["entries"]["own"]
    assert hours["low"] < hours["value"] < hours["high"]
    assert four["rows"][0]["entries"]["own"]["value"] == pytest.approx(hours["value"] / 4)
    text = here("forecast-volume", cwd=tmp_path).stdout
    assert "Platynereis whole body" in text
    assert max(map(len, text.splitlines())) <= 80


def test_forecast_volume_reads_only_the_metadata_of_a_volume(tmp_path):
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file.create_dataset("raw", (10_000, 10_000, 10_000), np.uint8, chunks=(64, 64, 64))
    answer = here("forecast-volume", "mine.h5/raw", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["tables"][0]["rows"][0]["entries"]["voxels"]["value"] == 1e12


BAD = {
    ("forecast-volume", "--voxels", "0"): "--voxels must be at least 1",
    ("forecast-volume", "--voxels", "nan"): "--voxels must be at least 1",
    ("forecast-volume", "--price-per-hour", "-1"): "--price-per-hour must be above zero",
    ("forecast-volume", "--watts", "inf"): "--watts must be above zero",
    ("forecast-volume", "--devices", "0"): "--devices must be between 1 and",
    ("forecast-volume", "--batch", "3"): "No such option '--batch'",
    ("forecast-volume", "nowhere.zarr"): "no run, and no volume: ",
    ("forecast", "nowhere.csv", "--voxels", "3"): "No such option '--voxels'",
    ("run", "unet3d", "--set", "patch=5x5x5"): "a multiple of 1x27x27",
    ("run", "unet3d", "--set", "data=nowhere.h5"): "there is no nowhere.h5",
    ("run", "unet3d", "--save", "w.txt"): "saved as .pt or .safetensors",
    ("run", "unet3d", "--save", "no/w.pt"): "there is no folder no",
    ("run", "unet3d", "--save", "w.pt", "--repeat", "2"): "--save keeps the weights of one process",
    ("run", "unet3d", "--save", "w.pt", "--sweep", "batch_size=1,2"): "--save keeps the weights of one process",
    ("run", "volume", "--save", "w.pt"): "--save keeps the weights of one workload",
    ("run", "mnist_cnn", "--save", "w.pt"): "save",
    ("run", "volume", "--soak", "1m"): "no soak",
    ("run", "unet3d_inference", "--set", "block=1x1x1"): "block plus halo must be a multiple",
}


@pytest.mark.parametrize("command", BAD, ids=" ".join)
def test_bad_input_prints_one_line(command, tmp_path):
    answer = here(*command, cwd=tmp_path)
    assert answer.returncode == 2
    said_in_one_line((answer.stdout, answer.stderr), BAD[command], tmp_path)
    assert not (tmp_path / "w.pt").exists()


def test_a_volume_that_can_not_be_trained_on_is_skipped_with_the_reason(tmp_path):
    write_synthetic(tmp_path / "a.h5", (3, 30, 30))
    answer = here("run", "unet3d", *TINY, "--set", "data=a.h5", cwd=tmp_path)
    assert answer.returncode == 3
    assert "a patch of 4x18x18 doesn't fit into" in " ".join(answer.stdout.split())


def test_a_killed_loader_is_a_recorded_failure_and_leaves_no_process(tmp_path):
    process = started("run", "unet3d", *TINY, "--set", "workers=2", "--budget", "10m", "--save", "w.pt", cwd=tmp_path)
    try:
        until(lambda: steps_began(tmp_path / "runs", rows=20))
        loaders = _loaders(process.pid)
        loaders[0].send_signal(signal.SIGKILL)
        code, output, _ = ended(process)
    finally:
        process.kill()
    assert code == 1
    assert "a loader process was lost" in " ".join(output.split())
    assert not (tmp_path / "w.pt").exists()
    assert not list(tmp_path.glob(".w.pt*"))
    _, alive = psutil.wait_procs(loaders, timeout=PATIENCE_SECONDS)
    assert not alive


def _loaders(pid):
    """Return the loader processes of the fork server, without the process that tracks shared memory."""
    everybody = psutil.Process(pid).children(recursive=True)
    servers = [each for each in everybody if "forkserver" in " ".join(each.cmdline())]
    found = [child for server in servers for child in server.children() if child in everybody]
    assert len(found) >= 2
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_over_all_blocks_of_a_volume_ends(tmp_path, ranks):
    """Like `rigdyno run volume --full`, on one rank and on two ranks that share 27 blocks."""
    options = {"features": "4,8", "volume": "16x60x60", "block": "6x22x22", "halo": "1x1x1"}
    head = api.prepare(Request(target="unet3d_inference", options=options, ranks=ranks, threads=1))
    (cell,) = head.plan.cells
    budget = Budget(seconds=30.0, job_steps=-(-27 // ranks))
    cell = msgspec.structs.replace(cell, spec=msgspec.structs.replace(cell.spec, budget=budget))
    head = msgspec.structs.replace(head, plan=msgspec.structs.replace(head.plan, cells=(cell,)))
    (whole,) = api.carry_out(create_run(head, tmp_path), head).measurements
    assert whole.outcome.quality.correct is True
    assert whole.job.items == 16 * 60 * 60
