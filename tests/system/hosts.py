"""Several hosts on one machine: network namespaces joined by a pair of virtual cables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import control_group, inside

BURST = "256kb"


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    core: int
    group: Path  # its own: of one for both, a host that is busy would take most
    is_named: bool = False  # whether it has a name of its own, too

    def command(self, *arguments: str, ahead_seconds: int = 0) -> list[str]:
        """On this host, and on its core: hosts share none. In a control group that goes before all that isn't of a
        host, so that a machine that is busy otherwise doesn't show; how nice a process is counts only within its
        session, and every worker has its own. `ahead_seconds`: of its monotonic clock."""
        clock = ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={ahead_seconds}"] if ahead_seconds else []
        own_core = ["taskset", "--cpu-list", str(self.core)]
        # Ranks that are told apart by what their hosts are called would take both for one.
        own_name = ["unshare", "--uts", "sh", "-c", f'hostname {self.name} && exec "$@"', "sh"] if self.is_named else []
        return inside(self.group, "ip", "netns", "exec", self.name, *own_core, *own_name, *clock, *arguments)


@contextmanager
def two_hosts(rate: str | None = None, *, named: bool = False) -> Iterator[tuple[Host, Host]]:
    """`rate`: what the cable carries, e.g. 100mbit; `named`: each host by a name of its own."""
    cores = sorted(os.sched_getaffinity(0))
    for tool in ("ip", "tc", "taskset"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: iproute2, util-linux)")
    if len(cores) < 2:
        pytest.skip("needs two cores")
    tag = f"rd{os.getpid() % 100_000}"
    with control_group("cpu", "a") as one, control_group("cpu", "b") as two:
        hosts = (
            Host(f"{tag}a", "10.213.77.1", cores[0], one, named),
            Host(f"{tag}b", "10.213.77.2", cores[1], two, named),
        )
        try:
            _join(hosts, rate)
            yield hosts
        finally:
            for host in hosts:
                subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


def _join(hosts: tuple[Host, Host], rate: str | None) -> None:
    for host in hosts:
        made = subprocess.run(["ip", "netns", "add", host.name], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"can't make a network namespace here: {made.stderr.strip()}")
    a, b = (host.name for host in hosts)
    _ip("link", "add", f"{a}0", "netns", a, "type", "veth", "peer", "name", f"{b}0", "netns", b)
    for host in hosts:
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", f"{host.name}0")
        for device in ("lo", f"{host.name}0"):
            _ip("-n", host.name, "link", "set", device, "up")
        if rate is not None:
            shape = ["tc", "-n", host.name, "qdisc", "add", "dev", f"{host.name}0", "root", "tbf"]
            subprocess.run([*shape, "rate", rate, "burst", BURST, "latency", "50ms"], check=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
