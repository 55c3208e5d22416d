"""How ranks that need TF_CONFIG learn of each other, and what becomes of them when one fails."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from driving import is_alive
from rigdyno.launchers import _ranks
from rigdyno.launchers import _tf_config_agent as agent
from rigdyno.launchers._address import LOOPBACK
from rigdyno.launchers._node import MeetingPoint, Part
from rigdyno.launchers.tf_config import tf_config
from rigdyno.launchers.torchrun import listening_at
from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import Cell, RunSpec


def a_cell(ranks, nodes):
    spec = RunSpec(workload="mnist_cnn_tensorflow", arrangement="multiworker", world_size=ranks, nodes=nodes)
    return Cell(name="01-test", spec=spec, participants=laid_out(ranks, nodes, "cpu"))


def test_every_rank_is_told_of_all_and_which_one_it_is():
    told = json.loads(tf_config(["10.0.0.1:1", "10.0.0.2:2"], 1))
    assert told == {
        "cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_the_nodes_tell_each_other_through_the_first(tmp_path):
    cell = a_cell(ranks=6, nodes=3)
    with listening_at(LOOPBACK) as listener:
        port, descriptor = listener.getsockname()[1], listener.detach()
    meetings = [MeetingPoint(LOOPBACK, port, descriptor), *[MeetingPoint(LOOPBACK, port)] * 2]
    # An address each: ports that one node has chosen and released may be chosen by another one of the same address.
    parts = [Part(cell, tmp_path, node, meeting, f"127.0.0.{node + 1}") for node, meeting in enumerate(meetings)]
    own = [agent._own_endpoints(part) for part in parts]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(agent.met, parts, own))
    assert heard[0] == heard[1] == heard[2] == {**own[0], **own[1], **own[2]}
    assert sorted(heard[0]) == list(range(6))
    assert len(set(heard[0].values())) == 6


def test_a_node_that_never_comes_ends_the_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "MEET_SECONDS", 0.05)
    with listening_at(LOOPBACK) as listener:
        part = Part(a_cell(2, 2), tmp_path, 0, MeetingPoint(LOOPBACK, listener.getsockname()[1], listener.detach()))
    with pytest.raises(TimeoutError):
        agent.met(part, {0: "127.0.0.1:1"})


def test_one_node_asks_nobody(tmp_path):
    part = Part(a_cell(2, 1), tmp_path, 0, MeetingPoint(LOOPBACK, 1))
    own = agent._own_endpoints(part)
    assert agent.met(part, own) == own
    assert sorted(own) == [0, 1]


def started(program):
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
HEARING = "import signal; print('ready', flush=True); signal.pause()"


def test_ranks_that_do_not_hear_are_made_to_end(monkeypatch):
    monkeypatch.setattr(_ranks, "GRACE_SECONDS", 0.2)
    running = {0: started(DEAF), 1: started(HEARING)}
    assert _ranks.stop(running) == [(0, -signal.SIGKILL), (1, -signal.SIGTERM)]
    assert not any(is_alive(process.pid) for process in running.values())


def test_the_first_that_fails_ends_the_others_and_stands_first(tmp_path, monkeypatch):
    programs = {0: HEARING, 1: "print('ready', flush=True); raise SystemExit(3)"}
    monkeypatch.setattr(_ranks, "started", lambda part, name, told: started(programs[int(told["RANK"])]))
    part = Part(a_cell(2, 1), tmp_path, 0, MeetingPoint(LOOPBACK, 1))
    assert _ranks.ranks_of(part, lambda rank: {}) == [(1, 3), (0, -signal.SIGTERM)]
