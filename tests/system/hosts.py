"""Two hosts on one machine: network namespaces connected by a virtual cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
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
    group: Path  # control group of this host alone, so that a busy host can't take time from the other
    names: Path | None = None  # hosts file; with it, the host has its own name, which resolves to its address

    def command(self, *arguments: str, ahead_seconds: int = 0) -> list[str]:
        """Return a command that runs the given one on this host and on its core, which no other host uses.

        The control group of the host has priority over processes of no host, so that other load hardly slows it down.
        Niceness would not do: it counts only within a session, and every worker has its own session. `ahead_seconds` is
        the lead of its monotonic clock.
        """
        clock = ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={ahead_seconds}"] if ahead_seconds else []
        own_core = ["taskset", "--cpu-list", str(self.core)]
        naming = f'hostname {self.name} && mount --bind {self.names} /etc/hosts && exec "$@"'
        own_name = [] if self.names is None else ["unshare", "--uts", "--mount", "sh", "-c", naming, "sh"]
        return inside(self.group, "ip", "netns", "exec", self.name, *own_core, *own_name, *clock, *arguments)


@contextmanager
def two_hosts(rate: str | None = None, *, named: bool = False) -> Iterator[tuple[Host, Host]]:
    """Connect two hosts. `rate` limits the cable, e.g. 100mbit; `named` gives each host its own name."""
    cores = sorted(os.sched_getaffinity(0))
    for tool in ("ip", "tc", "taskset"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: iproute2, util-linux)")
    if len(cores) < 2:
        pytest.skip("needs two cores")
    tag = f"rd{os.getpid() % 100_000}"
    addresses = {f"{tag}a": "10.213.77.1", f"{tag}b": "10.213.77.2"}
    with control_group("cpu", "a") as one, control_group("cpu", "b") as two, _hosts_file(addresses) as names:
        groups = zip(addresses.items(), cores, (one, two), strict=False)
        a, b = (Host(*host, core, group, names if named else None) for host, core, group in groups)
        hosts = a, b
        try:
            _join(hosts, rate)
            yield hosts
        finally:
            for host in hosts:
                subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


@contextmanager
def _hosts_file(addresses: dict[str, str]) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", prefix="rigdyno-hosts-") as file:
        file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
        file.flush()
        yield Path(file.name)


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
