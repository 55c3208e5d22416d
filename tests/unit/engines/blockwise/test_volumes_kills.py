"""Killed writers leave whole blocks or none; their other files can be removed."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blocks_children import until
from shards_by_hand import read_index

from rigdyno.engines.blockwise.boxes import Box
from rigdyno.engines.blockwise.interfaces import VoxelSize
from rigdyno.engines.blockwise.volumes import OmeZarrOutput

KILLS = 12
BLOCK = (64, 64, 64)
BOXES = [Box((start, 0, 0), (min(start + 64, 300), 64, 64)) for start in range(0, 300, 64)]
# One process imports everything and forks the writers; it has no threads that a fork could break.
WRITERS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import tensorstore
from test_volumes_kills import BOXES, values
from rigdyno.engines.blockwise.volumes import OmeZarrOutput

BLOCKS = [(box, values(box)) for box in BOXES]

def write(block):
    output.write(*block)
    os.write(1, b"written\\n")

for _ in sys.stdin:
    writer = os.fork()
    if writer == 0:
        output = OmeZarrOutput.open(sys.argv[1])
        os.write(1, b"%d\\n" % os.getpid())
        with ThreadPoolExecutor(2) as threads:
            while True:
                list(threads.map(write, BLOCKS))
    os.waitpid(writer, 0)
    os.write(1, b"gone\\n")
"""


def values(box):
    """Return values that can't be compressed, so that writing takes long."""
    return np.random.default_rng(box.start[0]).integers(0, 256, (2, *box.shape), np.uint8)


@pytest.fixture
def output(tmp_path):
    return OmeZarrOutput.create(
        str(tmp_path / "out.zarr"),
        shape=(300, 64, 64),
        channels=2,
        dtype="uint8",
        block=BLOCK,
        voxel_size=VoxelSize(),
        name="out",
        attributes={},
    )


def shards(output):
    return [file for file in (output.folder / "0" / "c").rglob("*") if file.is_file() and file.suffix != ".__lock"]


def is_stopped(pid):
    """Return whether all threads of a process are stopped."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def kill_in_the_middle_of_a_block(writer, output):
    """Stop the writer again and again, and kill it when a block is half written."""
    while True:
        os.kill(writer, signal.SIGSTOP)
        until(lambda: is_stopped(writer), "the writer was stopped")
        if any(output.folder.rglob("*.__lock")):
            os.kill(writer, signal.SIGKILL)
            return
        os.kill(writer, signal.SIGCONT)


def killed_writers(output):
    """Yield each time a writer was killed: at a random moment, or in the middle of a block."""
    moments = random.Random(5)
    command = [sys.executable, "-c", WRITERS, output.location]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here) as parent:
        for number in range(KILLS):
            print(file=parent.stdin, flush=True)
            writer = int(parent.stdout.readline())
            for _ in range(moments.randint(0, 4)):
                output.remove_litter()  # must not disturb running writers
                assert parent.stdout.readline() == "written\n"
            if number % 2:
                os.kill(writer, signal.SIGKILL)
            else:
                kill_in_the_middle_of_a_block(writer, output)
            while parent.stdout.readline() != "gone\n":
                pass
            yield
        parent.stdin.close()


def test_kills_at_random_moments_leave_only_whole_blocks(output):
    litter = 0
    for _ in killed_writers(output):
        for shard in shards(output):
            read_index(shard, (2, *BLOCK), (1, 64, 64, 64))
        litter += output.remove_litter()
    assert litter >= KILLS // 2
    written = [box for box in BOXES if output.shard(box).exists()]
    assert written
    for box in written:
        assert np.array_equal(output.read(box), values(box))


def test_a_half_written_block_is_written_again(output):
    box = BOXES[-1]
    output.shard(box).parent.mkdir(parents=True)
    output.shard(box).with_name(f"{output.shard(box).name}.__lock").write_bytes(b"half a block")
    again = OmeZarrOutput.open(output.location)
    assert again.remove_litter() == 1
    again.write(box, values(box))
    assert shards(again) == [again.shard(box)]
    assert np.array_equal(again.read(box), values(box))
