"""Two hosts, the second reached over ssh: a real OpenSSH server in a network namespace."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys

import pytest
from hosts import two_hosts
from process_changes import trusting_horovod

from driving import COMMAND, environment, until
from rigdyno import api
from rigdyno.schema.record import Completed

PATIENCE_SECONDS = 600.0
SMALL = ["--set", "batch_size=2", "--set", "image_size=32", "--set", "classes=10", "--set", "learning_rate=0.001"]


@pytest.fixture
def served(tmp_path):
    """Yield both hosts, with a server on the second, and the environment in which ssh reaches it."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if server is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs sshd (Debian: openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "allowed").write_bytes((tmp_path / "user.pub").read_bytes())
    settings = tmp_path / "sshd_config"
    settings.write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/allowed\nPidFile none\nUsePAM no\nStrictModes no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nPort 22\n"
    )
    with two_hosts() as hosts:
        with (tmp_path / "sshd.log").open("w") as log:
            daemon = subprocess.Popen(
                hosts[1].command(*_with_run_folder(server, "-D", "-e", "-f", str(settings))), stderr=log
            )
        try:
            until(
                lambda: daemon.poll() is not None or "listening on" in (tmp_path / "sshd.log").read_text(),
                "sshd listened",
            )
            assert daemon.poll() is None, (tmp_path / "sshd.log").read_text()
            yield hosts, _with_key(tmp_path)
        finally:
            daemon.terminate()
            daemon.wait()


def _with_run_folder(server, *arguments):
    """Provide /run/sshd, which sshd requires, in a mount namespace of its own."""
    make = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", make, "sh", server, *arguments]


def _with_key(folder):
    """Return an environment whose `ssh` uses the key of the test and no configuration files."""
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    real = shutil.which("ssh")
    options = f"-F none -i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    wrapper.write_text(f'#!/bin/sh\nexec {real} {options} "$@"\n')
    wrapper.chmod(0o755)
    return environment(PATH=f"{wrapper.parent}:{os.environ['PATH']}", HOME=str(folder))


def run(hosts, folder, variables, *names, options=(), asked=("resnet50", *SMALL, "--steps", "3")):
    command = [*COMMAND, "run", *asked, "--ranks", "1", "--hosts", ",".join(names)]
    return subprocess.run(
        hosts[0].command(*command, *options, "--out", str(folder / "runs")),
        cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def names_of(hosts):
    return hosts[0].address, f"{getpass.getuser()}@{hosts[1].address}"


def complaint(answer):
    assert answer.returncode == 2, answer.stderr
    assert "Traceback" not in answer.stderr
    return answer.stderr.splitlines()[-1]


def test_the_other_host_is_started_and_its_participants_come_back(served, tmp_path):
    """The shell on the other host prints something first, which is ignored."""
    hosts, variables = served
    (tmp_path / ".bashrc").write_text("echo welcome to the cluster\n")
    answer = run(hosts, tmp_path, variables, *names_of(hosts))
    assert answer.returncode == 0, answer.stderr
    (path,) = (tmp_path / "runs").iterdir()
    [record] = api.load(path).records
    assert isinstance(record.outcome, Completed)
    for name in ("rank0", "rank1"):
        assert {f"{name}/steps.rows", f"{name}/report.json", f"{name}/log.txt"} <= set(record.files)
    for name in ("node0", "node1"):
        assert f"{name}/telemetry.rows" in record.files
    assert [(pair.clock, pair.when) for pair in record.clocks] == [("node1", "start"), ("node1", "end")]


def test_the_cluster_suite_trains_in_both_frameworks(served, tmp_path):
    hosts, variables = served
    job = ("cluster", "--set", "devices=2", "--steps", "40", "--repeat", "1", "--idle", "1s")
    answer = run(hosts, tmp_path, variables | {"PYTHONPATH": trusting_horovod(tmp_path)}, *names_of(hosts), asked=job)
    assert answer.returncode in (0, 1), answer.stderr
    (path,) = (tmp_path / "runs").iterdir()
    finished = api.load(path)
    failed = [record for record in finished.records if not isinstance(record.outcome, Completed)]
    # The name of both hosts is that of the machine they are on, which leads to its loopback interface.
    assert {record.spec.arrangement for record in failed} <= {"horovod"}
    assert all("where Gloo would listen" in record.outcome.message for record in failed)
    trained = [each for each in finished.measurements if each.job is not None]
    assert {each.spec.arrangement for each in trained} >= {"ddp", "multiworker"}
    assert all([node.node for node in each.usage.nodes] == [0, 1] for each in trained)


def test_the_interpreter_of_the_other_hosts_can_be_chosen(served, tmp_path):
    hosts, variables = served
    python = tmp_path / "my python"
    python.write_text(f'#!/bin/sh\ntouch "{tmp_path}/was asked"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    answer = run(hosts, tmp_path, variables, *names_of(hosts), options=["--remote-python", str(python)])
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "was asked").exists()


def test_an_interpreter_that_is_not_there_is_one_line(served, tmp_path):
    hosts, variables = served
    answer = run(hosts, tmp_path, variables, *names_of(hosts), options=["--remote-python", "/nowhere/python"])
    assert "node 1 (" in complaint(answer)
    assert "/nowhere/python" in complaint(answer)
    assert not (tmp_path / "runs").exists()


def test_a_host_that_refuses_the_key_is_named_at_once(served, tmp_path):
    hosts, variables = served
    (tmp_path / "allowed").write_text("")
    answer = run(hosts, tmp_path, variables, *names_of(hosts))
    assert f"node 1 ({names_of(hosts)[1]}) is gone" in complaint(answer)
    assert "Permission denied" in complaint(answer)


def test_the_first_host_must_be_this_one(served, tmp_path):
    hosts, variables = served
    answer = run(hosts, tmp_path, variables, hosts[1].address, hosts[0].address)
    assert "the first of --hosts must be this machine" in complaint(answer)
