"""Tests of starting ranks of Horovod: their environment, mpirun's options, what another node runs, and the check that
Horovod works."""

import json
import os
import socket
import sys
import threading

import pytest

from driving import is_alive, until
from rigdyno.base.addresses import LOOPBACK
from rigdyno.launchers.horovod import gloo, mpi, presence, shell
from rigdyno.launchers.nodes.children import Child
from rigdyno.launchers.nodes.local import MeetingPoint, NodeShare
from rigdyno.schema.spec import Cell, RunSpec, assign_participants


def a_part(tmp_path, node, ranks=4, nodes=2):
    spec = RunSpec(workload="mnist_cnn", arrangement="horovod", world_size=ranks, nodes=nodes)
    cell = Cell(name="01-test", spec=spec, participants=assign_participants(ranks, nodes, "cpu"))
    return NodeShare(cell, tmp_path, node, MeetingPoint(LOOPBACK, 1234))


def test_every_rank_gets_its_numbers_in_the_environment(tmp_path):
    told = [gloo.make_rank_variables(a_part(tmp_path, rank // 2))(rank) for rank in range(4)]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [tuple(int(each[f"HOROVOD_{name}"]) for name in names) for each in told] == [
        (0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2),
    ]  # fmt: skip
    assert [each["HOROVOD_HOSTNAME"] for each in told] == ["node0", "node0", "node1", "node1"]
    assert {each["HOROVOD_CONTROLLER"] for each in told} == {"gloo"}
    where = {(each["HOROVOD_GLOO_RENDEZVOUS_ADDR"], each["HOROVOD_GLOO_RENDEZVOUS_PORT"]) for each in told}
    assert where == {(LOOPBACK, "1234")}


def test_a_users_choice_of_an_interface_is_kept(monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "quick0")
    assert gloo.common_variables(MeetingPoint(LOOPBACK, 1), LOOPBACK)["HOROVOD_GLOO_IFACE"] == "quick0"


@pytest.mark.parametrize(
    ("resolved_to", "own_address", "words"),
    [
        ("127.0.1.1", LOOPBACK, None),
        ("10.0.0.1", "10.0.0.1", None),
        (
            "127.0.1.1",
            "10.0.0.1",
            "resolves to 127.0.1.1, where Gloo would listen, and other nodes reach it at 10.0.0.1",
        ),
        (None, LOOPBACK, "can't be resolved"),
    ],
)
def test_a_host_name_of_another_address_is_refused_with_what_to_change(monkeypatch, resolved_to, own_address, words):
    def resolved(name):
        if resolved_to is None:
            raise socket.gaierror("no such name")
        return resolved_to

    monkeypatch.setattr(socket, "gethostbyname", resolved)
    said = gloo.check_host_name(own_address)
    assert said is None if words is None else words in said and "/etc/hosts" in said


def options_of(command):
    return {command[at + 1]: command[at + 2] for at, word in enumerate(command) if word == "--mca"}


def test_ranks_of_mpirun_yield_their_core_only_on_a_full_machine():
    full, roomy = (mpi.mpirun_command([(LOOPBACK, 2)], full=full) for full in (True, False))
    assert options_of(full)["mpi_yield_when_idle"] == "1"
    assert "mpi_yield_when_idle" not in options_of(roomy)
    for command in (full, roomy):
        assert command[command.index("-H") + 1] == "127.0.0.1:2"
        assert command[command.index("-np") + 1] == "2"
        assert command[command.index("--bind-to") + 1] == "none"
        assert "--oversubscribe" in command
        # The ranks and mpirun listen only on the network of the nodes.
        assert options_of(command)["btl_tcp_if_include"] == options_of(command)["oob_tcp_if_include"] == "127.0.0.0/8"


def test_hosts_have_the_order_of_the_nodes():
    command = mpi.mpirun_command([(LOOPBACK, 2), ("10.0.0.2", 2)], full=True)
    assert command[command.index("-H") + 1] == "127.0.0.1:2,10.0.0.2:2"
    assert command[command.index("-np") + 1] == "4"


def test_variables_of_other_job_managers_are_removed(monkeypatch):
    for name in ("SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        monkeypatch.setenv(name, "7")
    found = mpi.own_environment()
    assert not any(name.startswith(mpi.FOREIGN) for name in found)
    assert found["HOROVOD_CONTROLLER"] == "mpi"


@pytest.mark.parametrize("words", [["/bin/sh", "-c", "id"], ["sh -c 'orted; id'"], ["orted_evil"], [], [""]])
def test_another_node_starts_nothing_but_the_daemon(words):
    with pytest.raises(ValueError, match="only orted may be started"):
        mpi.daemon_command(words)


def test_the_daemon_is_started_without_a_shell():
    asked = ["/opt/elsewhere/orted -mca ess \"env\" -mca orte_hnp_uri '1.0;tcp://10.0.0.1:1' ; id"]
    assert mpi.daemon_command(asked) == [
        "orted", "-mca", "ess", "env", "-mca", "orte_hnp_uri", "1.0;tcp://10.0.0.1:1", ";", "id",
    ]  # fmt: skip


def test_the_remote_shell_forwards_the_command_and_waits_for_its_end(tmp_path, monkeypatch):
    theirs, ours = socket.socketpair()
    socket_path = tmp_path / "door"
    ended = []
    with ours, theirs, mpi._forward_commands(socket_path, {"10.0.0.2": mpi._Follower(ours, "10.0.0.2", 1)}) as path:
        monkeypatch.setenv("RIGDYNO_DOOR", path)
        calling = threading.Thread(target=lambda: ended.append(shell.main(["10.0.0.2", "orted -mca ess env"])))
        calling.start()
        assert json.loads(mpi._read_line(theirs)) == ["orted -mca ess env"]
        assert not ended
        theirs.close()
        calling.join(60)
    assert ended == [0]


def test_exits_are_read_in_the_order_of_the_ends(tmp_path):
    for at, rank, code in ((30, 0, -15), (10, 1, -9), (20, 2, 1)):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps([at, rank, code]))
    (tmp_path / "rank3.part").write_text("")
    assert mpi.read_exits(tmp_path) == [(1, -9), (2, 1), (0, -15)]


HOROVOD = """\
import os, sys, time
Sum = None
def init():
    {init}
def shutdown():
    pass
def rank():
    return int(os.environ["HOROVOD_RANK"])
def size():
    return int(os.environ["HOROVOD_SIZE"])
def mpi_enabled():
    return {mpi}
def allreduce(number, op, name):
    return {result}
"""
SERVER = """\
from http.server import HTTPServer
RendezvousHandler = None
class RendezvousHTTPServer(HTTPServer):
    def __init__(self, address, handler, verbose):
        super().__init__(address, handler)
    def init(self, plan):
        pass
"""


@pytest.fixture
def a_horovod(tmp_path, monkeypatch):
    """Return a function that makes a fake Horovod that can be imported."""

    def made(result="3.0", init="pass", mpi="False"):
        for package in ("horovod", "horovod/runner", "horovod/runner/http"):
            (tmp_path / package).mkdir(parents=True)
            (tmp_path / package / "__init__.py").touch()
        (tmp_path / "horovod/torch.py").write_text(HOROVOD.format(result=result, init=init, mpi=mpi))
        (tmp_path / "horovod/runner/http/http_server.py").write_text(SERVER)
        (tmp_path / "torch.py").write_text("tensor = float\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    presence.find_problem.cache_clear()
    yield made
    presence.find_problem.cache_clear()


@pytest.fixture(autouse=True)
def _a_name_that_resolves(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")


def test_two_ranks_that_sum_pass_the_check(a_horovod):
    a_horovod()
    assert presence.find_problem("torch", "gloo", full=True) is None


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"result": "number"}, "the sum over 2 ranks is"),
        ({"init": "raise ImportError('undefined symbol: _ZN3c10')"}, "undefined symbol: _ZN3c10"),
        ({"mpi": "True"}, "the sum over 2 ranks is 3, over mpi"),
    ],
)
def test_ranks_that_do_not_sum_fail_the_check(a_horovod, broken, words):
    a_horovod(**broken)
    said = presence.find_problem("torch", "gloo", full=True)
    assert said.startswith("Horovod over Gloo for torch does not work here: summing a number over two ranks fails: ")
    assert words in said
    assert said.endswith("; try make horovod")


def test_hanging_ranks_are_ended_at_the_time_limit(a_horovod, monkeypatch, tmp_path):
    a_horovod(init=f"open(r'{tmp_path}/pid' + str(rank()), 'w').write(str(os.getpid())); time.sleep(600)")
    files = [tmp_path / "pid0", tmp_path / "pid1"]

    class Late(Child):
        """A child whose time limit passes once both ranks hang."""

        def wait(self, seconds):
            until(lambda: all(file.exists() and file.read_text().isdigit() for file in files), "both ranks hung")
            return False

    monkeypatch.setattr(presence, "Child", Late)
    assert "did not end within 120 s" in presence.find_problem("torch", "gloo", full=True)
    pids = [int(file.read_text()) for file in files]
    until(lambda: not any(map(is_alive, pids)), "both ranks were gone")


def test_the_check_runs_once(a_horovod, monkeypatch):
    a_horovod()
    assert presence.find_problem("torch", "gloo", full=True) is None
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert presence.find_problem("torch", "gloo", full=True) is None
