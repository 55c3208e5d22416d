"""Two hosts, the second reached over ssh: a real server of OpenSSH in a network namespace."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time

import pytest
from hosts import two_hosts

from driving import COMMAND, environment
from rigdyno import api
from rigdyno.schema.record import Completed

PATIENCE_SECONDS = 300.0
SMALL = ["--set", "batch_size=2", "--set", "image_size=32", "--set", "classes=10", "--set", "learning_rate=0.001"]


@pytest.fixture
def served(tmp_path):
    """Both hosts, a server on the second, and the environment in which ssh finds its way there."""
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
            daemon = subprocess.Popen(hosts[1].command(server, "-D", "-e", "-f", str(settings)), stderr=log)
        time.sleep(1.0)
        assert daemon.poll() is None, (tmp_path / "sshd.log").read_text()
        try:
            yield hosts, _with_key(tmp_path)
        finally:
            daemon.terminate()
            daemon.wait()


def _with_key(folder):
    """An `ssh` that knows the test's key and nobody else's files."""
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    real = shutil.which("ssh")
    options = f"-F none -i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    wrapper.write_text(f'#!/bin/sh\nexec {real} {options} "$@"\n')
    wrapper.chmod(0o755)
    return environment(PATH=f"{wrapper.parent}:{os.environ['PATH']}", HOME=str(folder))


def run(hosts, folder, variables, *names):
    first = hosts[0]
    command = [*COMMAND, "run", "resnet50", *SMALL, "--ranks", "1", "--budget", "25s", "--hosts", ",".join(names)]
    return subprocess.run(
        first.command(*command, "--out", str(folder / "runs")),
        cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def test_the_other_host_is_started_and_its_rank_comes_back(served, tmp_path):
    hosts, variables = served
    answer = run(hosts, tmp_path, variables, hosts[0].address, f"{getpass.getuser()}@{hosts[1].address}")
    assert answer.returncode == 0, answer.stderr
    (path,) = (tmp_path / "runs").iterdir()
    [record] = api.load(path).records
    assert isinstance(record.outcome, Completed)
    assert {"steps.0.rows", "steps.1.rows", "worker.1.json"} <= set(record.files)


def test_a_host_that_lets_nobody_in_is_named_at_once(served, tmp_path):
    hosts, variables = served
    (tmp_path / "allowed").write_text("")
    answer = run(hosts, tmp_path, variables, hosts[0].address, f"{getpass.getuser()}@{hosts[1].address}")
    assert answer.returncode == 2
    said = [line for line in answer.stderr.splitlines() if line.startswith("rigdyno: ")]
    assert "node 1 doesn't come" in said[-1]
    assert "Permission denied" in said[-1]
