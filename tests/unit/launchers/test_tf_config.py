"""Tests of ranks with TF_CONFIG: the exchange of ports, and stopping the ranks when one fails."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from driving import is_alive
from rigdyno.base.addresses import LOOPBACK
from rigdyno.launchers.nodes import ranks as _ranks
from rigdyno.launchers.nodes import tf_config_agent as agent
from rigdyno.launchers.nodes.local import MeetingPoint, NodeShare
from rigdyno.launchers.nodes.ranks import listen_at
from rigdyno.launchers.tf_config import format_tf_config
from rigdyno.schema.spec import Cell, RunSpec, assign_participants


def a_cell(ranks, nodes):
    spec = RunSpec(workload="mnist_cnn_tensorflow", arrangement="multiworker", world_size=ranks, nodes=nodes)
    return Cell(name="01-test", spec=spec, participants=assign_participants(ranks, nodes, "cpu"))


def test_tf_config_has_all_ranks_and_the_own_index():
    told = json.loads(format_tf_config(["10.0.0.1:1", "10.0.0.2:2"], 1))
    assert told == {
        "cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_nodes_exchange_ports_through_the_first(tmp_path):
    cell = a_cell(ranks=6, nodes=3)
    with listen_at(LOOPBACK) as listener:
        port, descriptor = listener.getsockname()[1], listener.detach()
    meetings = [MeetingPoint(LOOPBACK, port, descriptor), *[MeetingPoint(LOOPBACK, port)] * 2]
    # Each node has its own address: a port that one node has released may be chosen by another at the same address.
    parts = [NodeShare(cell, tmp_path, node, meeting, f"127.0.0.{node + 1}") for node, meeting in enumerate(meetings)]
    own = [agent._own_endpoints(part) for part in parts]
    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(agent.exchange_ports, parts, own))
    assert heard[0] == heard[1] == heard[2] == {**own[0], **own[1], **own[2]}
    assert sorted(heard[0]) == list(range(6))
    assert len(set(heard[0].values())) == 6


def test_a_missing_node_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "MEET_SECONDS", 0.05)
    with listen_at(LOOPBACK) as listener:
        part = NodeShare(
            a_cell(2, 2), tmp_path, 0, MeetingPoint(LOOPBACK, listener.getsockname()[1], listener.detach())
        )
    with pytest.raises(TimeoutError):
        agent.exchange_ports(part, {0: "127.0.0.1:1"})


def test_a_single_node_exchanges_nothing(tmp_path):
    part = NodeShare(a_cell(2, 1), tmp_path, 0, MeetingPoint(LOOPBACK, 1))
    own = agent._own_endpoints(part)
    assert agent.exchange_ports(part, own) == own
    assert sorted(own) == [0, 1]


def started(program):
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
HEARING = "import signal; print('ready', flush=True); signal.pause()"


def test_ranks_that_ignore_sigterm_are_killed(monkeypatch):
    monkeypatch.setattr(_ranks, "GRACE_SECONDS", 0.2)
    running = {0: started(DEAF), 1: started(HEARING)}
    assert _ranks.stop_ranks(running) == [(0, -signal.SIGKILL), (1, -signal.SIGTERM)]
    assert not any(is_alive(process.pid) for process in running.values())


def test_a_failed_rank_stops_the_others_and_comes_first(tmp_path, monkeypatch):
    programs = {0: HEARING, 1: "print('ready', flush=True); raise SystemExit(3)"}
    monkeypatch.setattr(_ranks, "start_rank", lambda part, name, told: started(programs[int(told["RANK"])]))
    part = NodeShare(a_cell(2, 1), tmp_path, 0, MeetingPoint(LOOPBACK, 1))
    assert _ranks.run_ranks(part, lambda rank: {}) == [(1, 3), (0, -signal.SIGTERM)]
