"""Test `rigdyno infer` from outside: real processes that are killed, interrupted or parallel, and wrong use."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorstore
import torch
from test_light_imports import LOOK

import slow_writes
from driving import COMMAND, PATIENCE_SECONDS, environment, here, none_left, said_in_one_line, until
from rigdyno import cli
from rigdyno.engines.blockwise.network.unet import UNet3d
from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput
from rigdyno.schema.record import Completed, Failed
from rigdyno.schema.view import View
from rigdyno.store.folder import RunFolder
from warm import Warm

SHAPE, BLOCK, BLOCKS = (32, 40, 48), "8", 4 * 5 * 6
NET = """
import os
from pathlib import Path

import torch
from torch import nn


def build(width=4):
    network = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, 1, 1), nn.Sigmoid())
    network.load_state_dict(torch.load(Path(__file__).parent / "weights.pt", weights_only=True))
    return network


class Coarser(nn.Module):
    def forward(self, x):
        return nn.functional.avg_pool3d(x, 2)


class Smaller(nn.Module):
    def forward(self, x):
        return x[:, :, 1:]


class Fails(nn.Module):
    # Once some blocks are done. What the values decide can't be traced, so it is run as it is.
    def forward(self, x):
        marks = Path(os.environ["MARKS"])
        if x.max() > -1e30 and marks.exists() and marks.read_bytes().count(1) >= 1:
            raise ZeroDivisionError("1 / 0 in this block")
        return torch.sigmoid(x)


class Broken(nn.Module):
    def forward(self, x):
        return x + torch.nan


def two_channels():
    return nn.Conv3d(2, 1, 3, padding=1)


def failing():
    raise ZeroDivisionError("1 / 0")
"""


def write_zarr(folder: Path, values: np.ndarray, chunk: int = 16) -> Path:
    edges = [1] * (values.ndim - 3) + [chunk] * 3
    spec = {
        "driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}, "create": True,
        "metadata": {
            "shape": values.shape, "data_type": values.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": edges}},
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "gzip", "configuration": {"level": 1}},
            ],
        },
    }  # fmt: skip
    tensorstore.open(spec).result().write(values).result()
    return folder


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Return a folder with a volume of 120 blocks, networks and weights."""
    folder = tmp_path_factory.mktemp("given")
    values = np.random.default_rng(0).normal(120, 30, SHAPE).clip(1, 255).astype(np.uint8)
    write_zarr(folder / "raw.zarr", values)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = UNet3d(features=(4, 8)).eval()
    network.last.weight.data *= 40  # outputs that differ, and don't compress to almost nothing
    torch.save(network.state_dict(), folder / "unet.pt")
    torch.export.save(torch.export.export(network, (torch.zeros(1, 1, 32, 32, 32),)), folder / "net.pt2")
    (folder / "net.py").write_text(NET)
    small = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(4, 1, 1))
    torch.save(small.state_dict(), folder / "weights.pt")
    exported = torch.export.export(
        torch.nn.Sequential(*small, torch.nn.Sigmoid()).eval(), (torch.zeros(1, 1, 9, 9, 9),)
    )
    torch.export.save(exported, folder / "small.pt2")
    torch.set_num_threads(before)
    return folder


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with Warm(tmp_path_factory.mktemp("warm")) as warm:
        yield warm


def infer_command(given, out, *more, source="raw.zarr", model="net.pt2", block=BLOCK):
    """Return the command; its runs are stored next to the output."""
    model, runs = f"{given}/{model}", f"{out}.runs"
    return ("infer", f"{given}/{source}", str(out), "--model", model, "--block", block, "--out", runs, *more)


def read_totals(answer):
    """Return the totals of the JSON document by name."""
    (table,) = (table for table in json.loads(answer.out)["tables"] if table["title"] == "Totals")
    return {row["entries"]["what"]["text"]: row["entries"]["total"]["value"] for row in table["rows"]}


def read_only_record(out):
    """Return the record and the rows of the only run next to the output."""
    (path,) = Path(f"{out}.runs").glob("infer.*")
    (cell,) = RunFolder(path).cells([])
    [(_, rows)] = cell.steps()
    return cell.record, rows


def join_lines(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def uninterrupted(given, warm, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "out"
    answer = warm.run(*infer_command(given, out), cwd=given)
    assert answer.code == 0, answer.err
    return out


def read_output(out):
    output = OmeZarrOutput.open(str(out))
    from rigdyno.engines.blockwise.boxes import whole_box

    return output.read(whole_box(output.shape))


def read_shards(out):
    return {path.relative_to(out): path.read_bytes() for path in (out / "0").rglob("*") if path.is_file()}


def assert_same(out, other):
    """Check that all files of both arrays are equal byte by byte, and nothing partial is left."""
    assert read_shards(out) == read_shards(other)
    assert (read_output(out) == read_output(other)).all()
    assert (read_output(out) > 0).any()


def count_done_blocks(out):
    marks = out / ".rigdyno" / "blocks"
    return marks.read_bytes().count(b"\1") if marks.exists() else 0


# -- No block is lost or computed twice ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_resumes_with_the_same_result(seed, given, warm, uninterrupted, tmp_path):
    chance, out, writes = random.Random(seed), tmp_path / "out", tmp_path / "writes"
    moments = sorted(chance.sample(range(BLOCKS - 30), 3))
    for moment in moments:
        running = warm.start(
            *infer_command(given, out), cwd=given, writes=writes, pause=1.0, fast=moment - count_done_blocks(out)
        )
        until(lambda moment=moment: count_done_blocks(out) >= moment, f"{moment} blocks were done")
        running.send(signal.SIGKILL)
        assert warm.ended(running).code == -signal.SIGKILL
    before = count_done_blocks(out)
    answer = warm.run(*infer_command(given, out, "--json"), cwd=given, writes=writes)
    assert answer.code == 0, answer.err
    assert read_totals(answer)["blocks"] == BLOCKS - before
    assert_same(out, uninterrupted)
    boxes = [line.partition(" ")[2] for line in writes.read_text().splitlines()]
    assert len(set(boxes)) == BLOCKS
    assert len(boxes) <= BLOCKS + len(moments)  # only blocks that were being written at a kill are written again


def test_killed_while_planning_it_starts_again(given, warm, uninterrupted, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        running = warm.start(*infer_command(given, out), cwd=given)
        until(lambda: (out / ".rigdyno" / "lock").exists(), "it had begun to plan")
        running.send(signal.SIGKILL)
        warm.ended(running)
    answer = warm.run(*infer_command(given, out), cwd=given)
    assert answer.code == 0, answer.err
    assert_same(out, uninterrupted)


# Slows down the command, but not its child processes.
SLOW = """
import sys
if "infer" in sys.orig_argv:
    sys.path.append({tests!r})
    from slow_writes import slow_writes
    slow_writes("writes", pause=1.0, fast=4)
"""


def test_the_command_resumes_after_kill_and_interrupt(given, warm, uninterrupted, tmp_path):
    """Run it like a user: a new process, in another folder, with relative paths."""
    out = tmp_path / "out"
    arguments = infer_command(os.path.relpath(given, tmp_path), "out", "--threads", "1")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW.format(tests=str(Path(slow_writes.__file__).parent)))
    with (tmp_path / "said").open("w") as said:
        for number in (signal.SIGKILL, signal.SIGINT):
            before = count_done_blocks(out)
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=tmp_path,
                env=environment(PYTHONPATH=os.pathsep.join((f"{tmp_path}/site", os.environ.get("PYTHONPATH", "")))),
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                until(lambda before=before: count_done_blocks(out) >= before + 4, "some blocks were done")
                os.killpg(process.pid, number)
                code = process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()
                process.wait()
            assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert 8 <= count_done_blocks(out) < BLOCKS
    last = (tmp_path / "said").read_text().splitlines()[-1]
    assert last == "rigdyno: interrupted; what is done stays in out: run the same command again, and it goes on"
    assert "Traceback" not in (tmp_path / "said").read_text()
    answer = warm.run(*arguments, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "  going on with what was begun in out;" in answer.out
    assert_same(out, uninterrupted)


def test_an_interrupt_while_planning_leaves_nothing(given, warm, tmp_path):
    out = tmp_path / "out"
    # With these pauses it can't finish.
    running = warm.start(*infer_command(given, out), cwd=given, writes=tmp_path / "writes", pause=1.0)
    until(lambda: (out / ".rigdyno" / "lock").exists(), "it had begun to plan")
    running.send(signal.SIGINT)
    answer = warm.ended(running)
    assert answer.code == 130
    assert answer.err.splitlines()[-1].startswith("rigdyno: interrupted")
    assert "Traceback" not in answer.err
    assert not out.exists() or (out / ".rigdyno" / "plan.json").exists()  # it may just have finished planning


def test_a_worker_finishes_the_blocks_of_a_killed_one(given, warm, uninterrupted, tmp_path):
    out, writes = tmp_path / "out", tmp_path / "writes"
    first = warm.start(*infer_command(given, out), cwd=given, writes=writes, pause=1.0, fast=5)
    until(lambda: count_done_blocks(out) >= 5, "the first was at work")
    second = warm.start(*infer_command(given, out, "--json"), cwd=given, writes=writes, RANK="1", WORLD_SIZE="2")
    until(lambda: f"{second.pid} [" in writes.read_text(), "the second was at work")
    first.send(signal.SIGKILL)
    assert warm.ended(first).code == -signal.SIGKILL
    answer = warm.ended(second)
    assert answer.code == 0, answer.err
    assert count_done_blocks(out) == BLOCKS
    assert_same(out, uninterrupted)
    wrote = [line.split(" ", 1) for line in writes.read_text().splitlines()]
    assert {int(pid) for pid, _ in wrote} == {first.pid, second.pid}
    boxes = [box for _, box in wrote]
    twice = [(pid, box) for pid, box in wrote if boxes.count(box) > 1]
    assert len(set(boxes)) == BLOCKS
    assert [int(pid) for pid, _ in twice] in ([], [first.pid, second.pid])  # the block that died with the first


def test_two_workers_share_the_blocks(given, warm, uninterrupted, tmp_path):
    out, writes = tmp_path / "out", tmp_path / "writes"
    both = [warm.start(*infer_command(given, out, "--json"), cwd=given, writes=writes) for _ in range(2)]
    answers = [warm.ended(running) for running in both]
    assert [answer.code for answer in answers] == [0, 0]
    assert sum(read_totals(answer)["blocks"] for answer in answers) == BLOCKS
    boxes = [line.partition(" ")[2] for line in writes.read_text().splitlines()]
    assert len(boxes) == len(set(boxes)) == BLOCKS
    assert_same(out, uninterrupted)


def test_ranks_of_torchrun_share_the_blocks(given, uninterrupted, tmp_path):
    # The name of this host may have no address.
    torchrun = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", *torchrun, "-m", "rigdyno"]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(
            [*command, *infer_command(given, tmp_path / "out")],
            cwd=tmp_path, env=environment(), stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    text = (tmp_path / "said").read_text()
    assert code == 0, text
    assert text.count("Plan:") <= 1  # only one rank prints
    assert_same(tmp_path / "out", uninterrupted)


# -- Only the same command resumes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "small.pt2"}, "the model has changed"),
        ({"block": "16"}, "the grid has changed"),
        ({"more": ["--halo", "exact"]}, "the grid has changed"),
        ({"more": ["--normalise", "range"]}, "the normalisation has changed"),
        ({"more": ["--nan", "0"]}, "the normalisation has changed"),
        ({"more": ["--dtype", "float16"]}, "the output type has changed"),
        ({"more": ["--range", "0,2"]}, "the output type has changed"),
        ({"more": ["--mask", "{given}/raw.zarr"]}, "the mask has changed"),
        ({"source": "other.zarr"}, "the input has changed"),
        ({"more": ["--memory", "1MB"]}, "--memory allows 0.001"),
        ({"more": ["--backend", "compile"]}, "was begun with the backend torch, not compile"),
    ],
)
def test_resume_with_other_settings_is_rejected(
    changes, words, given, warm, uninterrupted, capsys, monkeypatch, tmp_path
):
    if "source" in changes and not (given / "other.zarr").exists():
        shutil.copytree(given / "raw.zarr", given / "other.zarr")
    more = [text.format(given=given) for text in changes.get("more", [])]
    arguments = infer_command(
        given, uninterrupted, *more, **{key: value for key, value in changes.items() if key != "more"}
    )
    before = read_shards(uninterrupted)
    monkeypatch.chdir(tmp_path)
    assert cli.main(list(arguments)) == 2
    said_in_one_line(capsys.readouterr(), words, tmp_path)
    assert read_shards(uninterrupted) == before


def test_a_damaged_plan_suggests_overwrite(given, uninterrupted, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    plan = out / ".rigdyno" / "plan.json"
    document = json.loads(plan.read_text())
    del document["plan"]["plan"]["halo"]
    monkeypatch.chdir(tmp_path)
    for content in (json.dumps(document), "{"):
        plan.write_text(content)
        assert cli.main(list(infer_command(given, out))) == 2
        said_in_one_line(capsys.readouterr(), "--overwrite", tmp_path)


# -- Wrong use ------------------------------------------------------------------------------------------------------

WRONG = {
    "missing input": (["nowhere.zarr", "out", "--model", "net.pt2"], "nowhere.zarr isn't there"),
    "no volume": (["net.py", "out", "--model", "net.pt2"], "a file of a kind that isn't read here"),
    "wrong dtype": (["int64.zarr", "out", "--model", "net.pt2"], "holds int64, and uint8, uint16, float32 are read"),
    "coarser": (["raw.zarr", "out", "--model", "net.py:Coarser"], "it must give one for each"),
    "smaller": (["raw.zarr", "out", "--model", "net.py:Smaller"], "it must give one for each"),
    "not a number": (["raw.zarr", "out", "--model", "net.py:Broken"], "isn't finite"),
    "one channel too few": (["raw.zarr", "out", "--model", "net.py:two_channels"], "channel"),
    "one channel too many": (["two.zarr", "out", "--model", "net.pt2"], "try --at c=0"),
    "failing network": (["raw.zarr", "out", "--model", "net.py:failing"], "1 / 0"),
    "no such network": (["raw.zarr", "out", "--model", "net.py:nothing"], "no network named 'nothing'"),
    "no such file": (["raw.zarr", "out", "--model", "nowhere.pt2"], "no file nowhere.pt2"),
    "unknown model": (["raw.zarr", "out", "--model", "resnet"], "no model named 'resnet'; try unet3d, monai:NAME"),
    "typo in --set": (["raw.zarr", "out", "--model", "unet3d", "--set", "featurs=4"], "no setting 'featurs'"),
    "half of --set": (["raw.zarr", "out", "--model", "unet3d", "--set", "features"], "--set takes key=value"),
    "no weights": (["raw.zarr", "out", "--model", "unet3d", "--weights", "nowhere.pt"], "nowhere.pt"),
    "other weights": (["raw.zarr", "out", "--model", "unet3d", "--weights", "weights.pt"], "doesn't fit the network"),
    "too little memory": (["raw.zarr", "out", "--model", "net.pt2", "--memory", "1MB"], "GB would do"),
    "memory nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--memory", "lots"], "'lots' is not a size; try 8GB"),
    "block nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--block", "8,8"], "--block takes one number or Z,Y"),
    "block off the step": (["raw.zarr", "out", "--model", "net.pt2", "--block", "9"], "must be multiples of 2x2x2"),
    "halo nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--halo", "some"], "--halo takes auto, exact"),
    "tolerance": (["raw.zarr", "out", "--model", "net.pt2", "--tolerance", "2"], "--tolerance must be between"),
    "normalise": (["raw.zarr", "out", "--model", "net.pt2", "--normalise", "z"], "no normalisation named 'z'"),
    "constant": (["flat.zarr", "out", "--model", "net.pt2"], "is the same everywhere; try --normalise none"),
    "range": (["raw.zarr", "out", "--model", "net.pt2", "--range", "1,0"], "range must go up"),
    "range nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--range", "1"], "--range takes LOW,HIGH"),
    "nan": (["raw.zarr", "out", "--model", "net.pt2", "--nan", "nan"], "must be finite itself"),
    "mask": (["raw.zarr", "out", "--model", "net.pt2", "--mask", "two.zarr"], "it must have one channel"),
    "at": (["raw.zarr", "out", "--model", "net.pt2", "--at", "t=0"], "no axis 't'"),
    "at nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--at", "c=x"], "--at takes whole numbers"),
    "device": (["raw.zarr", "out", "--model", "net.pt2", "--device", "cuda:99"], "the device 'cuda:99' can't be used"),
    "device nonsense": (["raw.zarr", "out", "--model", "net.pt2", "--device", "gpu"], "the device 'gpu' can't be used"),
    "backend": (["raw.zarr", "out", "--model", "net.pt2", "--backend", "x"], "no backend named 'x'; there are auto"),
    "extra": (["raw.zarr", "out", "--model", "monai:BasicUNet"], "pip install monai"),
    "output is a file": (["raw.zarr", "net.py", "--model", "net.pt2"], "net.py is a file: take another name"),
    "output isn't ours": (["raw.zarr", "taken", "--model", "net.pt2"], "taken holds notes.txt"),
    "overwrite isn't ours": (["raw.zarr", "taken", "--model", "net.pt2", "--overwrite"], "--overwrite leaves it alone"),
    "overwrites its input": (["raw.zarr", "raw.zarr", "--model", "net.pt2", "--overwrite"], "is inside the output"),
    "bytes that are no text": (["raw.zarr", os.fsdecode(b"o\xff"), "--model", "net.pt2"], "isn't UTF-8"),
    "output is a URL": (["raw.zarr", "s3://b/out", "--model", "net.pt2"], "is a URL"),
    "nothing to run": (["raw.zarr", "out"], "--model"),
}  # fmt: skip


@pytest.fixture(scope="module")
def wrong(given):
    write_zarr(given / "int64.zarr", np.ones((8, 8, 8), np.int64))
    write_zarr(given / "two.zarr", np.random.default_rng(0).integers(0, 255, (2, 12, 12, 12)).astype(np.uint8))
    write_zarr(given / "flat.zarr", np.full((12, 12, 12), 7, np.uint8))
    (given / "taken").mkdir()
    (given / "taken" / "notes.txt").write_text("mine")
    return given


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.usefixtures("one_thread")
def test_wrong_use_prints_one_line_and_exits_with_2(case, wrong, monkeypatch, capsys):
    arguments, words = WRONG[case]
    if case == "extra":
        monkeypatch.setitem(sys.modules, "monai", None)
    monkeypatch.chdir(wrong)
    before = sorted(wrong.rglob("*"))
    assert cli.main(["infer", *arguments]) == 2
    said_in_one_line(capsys.readouterr(), words, wrong)
    assert [path for path in sorted(wrong.rglob("*")) if path not in before and "__pycache__" not in path.parts] == []


def test_a_missing_extra_names_the_pip_command(given, warm, tmp_path):
    answer = warm.run(*infer_command(given, tmp_path / "out"), cwd=tmp_path, hidden=("tensorstore",))
    assert (answer.code, answer.out) == (2, "")
    said = "rigdyno: volumes need tensorstore, which isn't installed: pip install 'rigdyno[volume]'\n"
    assert answer.err == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["x", "-1", ""])
def test_an_invalid_rank_is_rejected(text, given, warm, tmp_path):
    answer = warm.run(*infer_command(given, tmp_path / "out"), cwd=tmp_path, RANK=text)
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("rigdyno: ")
    assert "Traceback" not in answer.err


# -- Inputs and disks that fail half way ---------------------------------------------------------------------------


def test_a_damaged_chunk_loses_only_its_blocks(given, warm, uninterrupted, tmp_path):
    shutil.copytree(given / "raw.zarr", tmp_path / "raw.zarr")
    chunk = tmp_path / "raw.zarr" / "c" / "0" / "1" / "1"
    whole = chunk.read_bytes()
    chunk.write_bytes(b"damaged")
    command = infer_command(given, tmp_path / "out", "--normalise", "120,30", "--halo", "2")
    command = ("infer", f"{tmp_path}/raw.zarr", *command[2:])
    answer = warm.run(*command, cwd=tmp_path)
    assert answer.code == 1, answer.err
    failed = 3 * 4 * 4  # blocks of 8, with a halo of 2, that touch the chunk [0:16, 16:32, 16:32]
    said = join_lines(answer.out)
    assert f"{failed} blocks couldn't be read; mend the input and run the same command again" in said
    assert "[0:8, 8:16, 8:16]: can't read" in said
    assert f"and {failed - 5} blocks more" in said
    assert answer.err.count("can't read [") >= failed
    assert count_done_blocks(tmp_path / "out") == BLOCKS - failed
    again = warm.run(*command, "--quiet", cwd=tmp_path)
    assert (again.code, again.err) == (1, "")
    assert f"{failed} blocks couldn't be read" in join_lines(again.out)
    chunk.write_bytes(whole)
    mended = warm.run(*command, cwd=tmp_path)
    assert mended.code == 0, mended.err
    assert re.search(rf"^ blocks +{failed}$", mended.out, re.MULTILINE)
    sound = warm.run(*infer_command(given, tmp_path / "sound", "--normalise", "120,30", "--halo", "2"), cwd=tmp_path)
    assert sound.code == 0
    assert_same(tmp_path / "out", tmp_path / "sound")


def test_a_damaged_chunk_of_a_small_volume_does_not_stop_planning(given, warm, tmp_path):
    """The rest is used for normalisation, and the halo is exact where no undamaged region can be probed."""
    shutil.copytree(given / "raw.zarr", tmp_path / "raw.zarr")
    (tmp_path / "raw.zarr" / "c" / "1" / "2" / "2").write_bytes(b"damaged")
    command = ("infer", "raw.zarr", "out", "--model", f"{given}/net.pt2", "--block", "8", "--json")
    answer = warm.run(*command, cwd=tmp_path)
    assert (answer.code, answer.err) == (1, "")
    counted = read_totals(answer)
    assert counted["blocks"] == count_done_blocks(tmp_path / "out") > 0
    assert counted["blocks that couldn't be read"] == BLOCKS - counted["blocks"] > 0
    plan = json.loads((tmp_path / "out" / ".rigdyno" / "plan.json").read_text())["plan"]["plan"]
    assert plan["normalisation"]["source"] == "1 places (0.97 of the volume)"


def test_a_value_that_is_not_finite_is_named_and_can_be_replaced(given, warm, tmp_path):
    values = np.random.default_rng(0).normal(0, 1, (40, 24, 24)).astype(np.float32)
    values[20, 3, 17] = np.nan
    write_zarr(tmp_path / "raw.zarr", values, chunk=8)
    command = ("infer", "raw.zarr", "out", "--model", f"{given}/net.pt2", "--block", "8", "--halo", "0")
    answer = warm.run(*command, cwd=tmp_path)
    assert answer.code == 1, answer.err
    assert "raw.zarr has a value that isn't finite at (20, 3, 17) of channel 0; --nan VALUE" in answer.err
    assert "1 block couldn't be read" in join_lines(answer.out)
    assert count_done_blocks(tmp_path / "out") == 5 * 9 - 1
    mended = warm.run(*command, "--nan", "0", "--overwrite", cwd=tmp_path)
    assert mended.code == 0, mended.err
    assert count_done_blocks(tmp_path / "out") == 5 * 9


def test_a_full_disk_is_reported_and_the_run_resumes(given, warm, uninterrupted, tmp_path):
    """Limit the size of files: first not even the plan can be written, then only some of the blocks."""
    out, quiet = tmp_path / "out", infer_command(given, tmp_path / "out", "--quiet")
    full = warm.run(*quiet, cwd=tmp_path, largest_file=400)
    assert full.code == 2
    assert re.fullmatch(r"rigdyno: can't \w+ \S+out.*: file too large; free some space and run the same .*\n", full.err)
    sizes = sorted(path.stat().st_size for path in (uninterrupted / "0" / "c").rglob("*") if path.is_file())
    begun = warm.start(*quiet, cwd=tmp_path, writes=tmp_path / "writes", pause=1.0, fast=4)
    until(lambda: count_done_blocks(out) > 3, "it had begun")
    begun.send(signal.SIGKILL)
    warm.ended(begun)
    before = count_done_blocks(out)
    full = warm.run(*quiet, cwd=tmp_path, largest_file=sizes[-3])
    assert full.code == 2
    unkept, unwritten = full.err.splitlines()  # the rows are a file too, and may be cut
    assert unkept.endswith("the volume is computed all the same, and no record is kept")
    assert re.match(r"rigdyno: can't write \[.*\] of .*: file too large", unwritten)
    assert before <= count_done_blocks(out) < BLOCKS
    answer = warm.run(*quiet, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert_same(out, uninterrupted)


# -- The record -----------------------------------------------------------------------------------------------------


def test_every_verb_reads_the_stored_run(given, warm, tmp_path):
    for name in ("one", "two"):
        answer = warm.run(*infer_command(given, name, "--label", "my machine"), cwd=tmp_path)
        assert answer.code == 0, answer.err
    record, rows = read_only_record(tmp_path / "one")
    assert record.outcome == Completed()
    assert (rows["items"].sum(), rows["steps"].sum()) == (np.prod(SHAPE), BLOCKS)
    assert list(rows["start_ns"][1:]) == list(rows["end_ns"][:-1])
    wall = record.facts.totals["time"].value
    assert 0 < (rows["end_ns"][-1] - rows["start_ns"][0]) / 1e9 <= wall
    assert (record.spec.options["model"], record.spec.options["block"]) == ("net.pt2", "8x8x8")
    assert record.label == "my machine"
    assert record.environment.framework["torch"]
    assert "node0/telemetry.rows" in record.files
    assert str(tmp_path) not in msgspec.json.encode(record).decode()
    one, two = (next((tmp_path / f"{name}.runs").glob("infer.*")) for name in ("one", "two"))
    none_left(one / "cells" / "01-infer")
    for verb in ("report", "show"):
        shown = here(verb, str(one), cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert re.search(r"^ infer +[\d.]+ kvoxel/s .* (VALID|SUSPECT|INVALID)$", shown.stdout, re.MULTILINE)
        assert re.search(r"\[[\d.]+, [\d.]+\]", shown.stdout)
        assert "Verdict: " in shown.stdout
    assert "voxel/s" in here("report", str(one), "--format", "csv", cwd=tmp_path).stdout
    compared = here("compare", str(one), str(two), cwd=tmp_path)
    assert compared.stderr == ""
    assert "infer model=net.pt2" in join_lines(compared.stdout)
    invalid = "INVALID in infer." in join_lines(compared.stdout)  # on a busy machine
    assert compared.returncode == (3 if invalid else 0)
    assert invalid or "one process" in join_lines(compared.stdout)


def test_an_interrupted_run_is_recorded_and_the_next_notes_the_resume(given, warm, tmp_path):
    out = tmp_path / "out"
    running = warm.start(*infer_command(given, out), cwd=tmp_path, writes=tmp_path / "writes", pause=1.0, fast=4)
    until(lambda: count_done_blocks(out) > 3, "some blocks were done")
    running.send(signal.SIGTERM)  # as Ctrl-C does
    answer = warm.ended(running)
    assert answer.code == 130
    assert answer.err.splitlines()[-1].startswith("rigdyno: interrupted; what is done stays in ")
    first, rows = read_only_record(out)
    assert first.outcome == Failed(kind="interrupted", phase="measure", message="interrupted by Ctrl-C")
    before = count_done_blocks(out)
    assert rows["steps"].sum() == first.facts.totals["blocks"].value == before
    (path,) = Path(f"{out}.runs").iterdir()
    none_left(path / "cells" / "01-infer")
    assert "interrupted while in measure" in join_lines(here("report", str(path), cwd=tmp_path).stdout)
    resumed = here("run", "--resume", str(path), cwd=tmp_path)
    assert resumed.returncode == 2
    assert resumed.stderr == f"rigdyno: {path} is a run of `rigdyno infer`: run the same command again to continue\n"
    more = infer_command(given, out, "--out", str(tmp_path / "later"))
    assert warm.run(*more, cwd=tmp_path).code == 0
    (later,) = (tmp_path / "later").iterdir()
    (cell,) = RunFolder(later).cells([])
    assert cell.record.facts.totals["blocks"].value == BLOCKS - before
    note = f"went on with what was begun before: {before} of {BLOCKS} blocks were there already"
    assert note in cell.record.facts.notes
    assert note in join_lines(here("report", str(later), cwd=tmp_path).stdout)


def test_a_killed_run_is_reported_with_how_to_resume(given, warm, tmp_path):
    out = tmp_path / "out"
    running = warm.start(*infer_command(given, out), cwd=tmp_path, writes=tmp_path / "writes", pause=1.0, fast=4)
    until(lambda: count_done_blocks(out) > 3, "some blocks were done")
    running.send(signal.SIGKILL)
    warm.ended(running)
    (path,) = Path(f"{out}.runs").iterdir()
    none_left(path / "cells" / "01-infer")
    report = here("report", str(path), cwd=tmp_path)
    assert report.returncode == 0
    assert "run the same `rigdyno infer` again, and it goes on" in join_lines(report.stdout)


def test_a_network_that_fails_in_a_block_is_recorded(given, warm, tmp_path):
    out = tmp_path / "out"
    variables = {"MARKS": str(out / ".rigdyno" / "blocks")}
    answer = warm.run(*infer_command(given, "out", model="net.py:Fails", block="32"), cwd=tmp_path, **variables)
    assert answer.code == 1, answer.err
    assert "Traceback" not in answer.err + answer.out
    said = join_lines(answer.out)
    assert "ZeroDivisionError: 1 / 0 in this block" in said
    assert "what is done stays in out: run the same command again, and it goes on" in said
    record, rows = read_only_record(out)
    assert record.outcome == Failed(kind="exception", phase="measure", message="ZeroDivisionError: 1 / 0 in this block")
    assert rows["steps"].sum() == count_done_blocks(out) >= 1
    (log,) = Path(f"{out}.runs").glob("*/cells/*/rank0/log.txt")
    assert "in forward" in log.read_text()


def test_the_volume_is_computed_if_no_run_can_be_stored(given, warm, uninterrupted, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "file").write_text("in the way")
    answer = warm.run(*infer_command(given, "out", "--out", "file/runs"), cwd=tmp_path)
    assert answer.code == 0
    assert re.fullmatch(
        r"rigdyno: can't write .*; the volume is computed all the same, and no record is kept\n", answer.err
    )
    assert re.search(rf"^ blocks +{BLOCKS}$", answer.out, re.MULTILINE)
    assert answer.out.endswith("\nSaved in out\n")
    assert_same(out, uninterrupted)


def test_a_folder_for_runs_in_the_volume_is_rejected(given, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*infer_command(given, "out"), "--out", "out/runs"]) == 2
    said_in_one_line(
        capsys.readouterr(), "out is for the volume only, but the folder of the runs, out/runs, is in it", tmp_path
    )
    assert list(tmp_path.iterdir()) == []


# -- Output ---------------------------------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")
ANY_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_json_is_one_document_and_nothing_else(given, warm, tmp_path):
    planned = warm.run(*infer_command(given, tmp_path / "out", "--json", "--dry-run"), cwd=tmp_path)
    assert (planned.code, planned.err) == (0, "")
    assert json.loads(planned.out)["plan"]["block"] == [8, 8, 8]
    assert not (tmp_path / "out").exists()
    answer = warm.run(*infer_command(given, tmp_path / "out", "--json"), cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    document = msgspec.json.decode(answer.out, type=View)
    assert document.title == "infer"
    assert document.saved_in[0] == str(tmp_path / "out")
    counted = read_totals(answer)
    assert (counted["blocks"], counted["voxels"]) == (BLOCKS, np.prod(SHAPE))
    assert 0 < counted["predicting"] < counted["time"]
    provenance = json.loads((tmp_path / "out" / "zarr.json").read_text())["attributes"]["rigdyno"]
    assert provenance["halo"] == read_planned_halo(planned)
    again = warm.run(*infer_command(given, "out", "--dry-run"), cwd=tmp_path)
    assert "  going on with what was begun in out;" in again.out
    nothing = warm.run(*infer_command(given, tmp_path / "out", "--json"), cwd=tmp_path)
    assert (nothing.code, nothing.err) == (0, "")
    assert msgspec.json.decode(nothing.out, type=View).closing == ("Nothing was left to do.",)


def read_planned_halo(answer):
    return json.loads(answer.out)["plan"]["halo"]


def test_a_pipe_gets_plain_lines_of_80_columns(given, warm, tmp_path):
    answer = warm.run(*infer_command(given, "out"), cwd=tmp_path)
    assert answer.code == 0
    text = answer.out + answer.err
    assert "\x1b" not in text
    assert "\r" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert re.match(r"This machine: .*\n(  .*\n)*Plan: infer, 1 cell, about ", answer.out)
    assert re.fullmatch(r"\[1/1\] 01-infer: done in [\d.]+ s\n", answer.err)
    for words in ("kvoxel/s", "Verdict: ", "\nSaved in out\n", "\nSaved in out.runs/infer."):
        assert words in answer.out


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_a_bar(plain, given, warm, tmp_path):
    slow = {"writes": tmp_path / "writes", "pause": 0.02}
    command = infer_command(given, "out")
    screen = warm.in_terminal(*command, cwd=tmp_path, **slow, **({"NO_COLOR": "1"} if plain else {}))
    assert screen.code == 0, screen.out
    assert bool(COLOUR.search(screen.out)) is not plain
    shown = ANY_CODE.sub("", screen.out)
    assert re.search(r"1/1 infer +\S* +\d+ % [\d.]+ kvoxel/s, [\d.]+ s left", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert screen.out.rindex("\x1b[?25h") > screen.out.rindex("\x1b[?25l")  # the cursor is back
    assert "Saved in" in shown


def test_a_failure_fits_a_narrow_terminal(given, warm, tmp_path):
    shutil.copytree(given / "raw.zarr", tmp_path / "raw.zarr")
    (tmp_path / "raw.zarr" / "c" / "0" / "0" / "0").write_bytes(b"[red]damaged[/nothing]")
    command = ("infer", "raw.zarr", "out", "--model", f"{given}/net.pt2", "--halo", "0", "--block", "16")
    screen = warm.in_terminal(*command, cwd=tmp_path, columns=60)
    assert screen.code == 1, screen.out
    shown = ANY_CODE.sub("", screen.out)
    assert max(map(len, shown.splitlines())) <= 60
    assert "1 block couldn't be read" in join_lines(shown)
    assert "can't read [0:16, 0:16, 0:16]" in join_lines(shown)


@pytest.mark.parametrize("arguments", [["infer", "--help"], ["infer", "raw.zarr", "out"]])
def test_help_and_typos_do_not_import_torch(arguments, tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        cwd=tmp_path, env=environment(COLUMNS="80"), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    said, _, loaded = answer.stderr.rpartition("LOADED")
    assert answer.returncode == (0 if "--help" in arguments else 2), said
    assert not {"torch", "tensorstore", "h5py", "numpy"} & set(loaded.split())
    if "--help" in arguments:
        assert "Every voxel is written exactly once." in answer.stdout
        assert max(map(len, answer.stdout.splitlines())) <= 100


# -- Models -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
def test_a_python_network_and_its_export_give_the_same_output(given, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, model in (("own", "net.py:build"), ("exported", "small.pt2")):
        assert cli.main([*infer_command(os.path.relpath(given), f"../{name}", model=model)]) == 0
        assert "nothing is trimmed" not in capsys.readouterr().err
    assert_same(tmp_path / "own", tmp_path / "exported")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.usefixtures("one_thread")
def test_weights_of_the_builtin_network_are_loaded(given, uninterrupted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = ("--model", "unet3d", "--set", "features=4,8", "--weights", f"{given}/unet.pt", "--block", BLOCK)
    assert cli.main(["infer", f"{given}/raw.zarr", "out", *more]) == 0
    assert "random weights" not in capsys.readouterr().err
    assert_same(tmp_path / "out", uninterrupted)


def test_the_documented_python_example_works(given, tmp_path, monkeypatch, capsys, one_thread):
    page = (Path(__file__).parents[2] / "docs" / "infer.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name in ("raw.zarr", "net.pt2"):
        (tmp_path / name).symlink_to(given / name)
    exec(code, {})
    assert "Plan(" in capsys.readouterr().out
    assert (tmp_path / "out.zarr" / "zarr.json").exists()


def test_every_documented_option_exists(given):
    from rigdyno.commands.infer import command

    page = (Path(__file__).parents[2] / "docs" / "infer.md").read_text()
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]*", page)) <= known | {
        "--nproc-per-node",
        "--save",
    }  # options of torchrun and of `run unet3d`
