"""The hosts of a run over several nodes: a list, or a file."""

from __future__ import annotations

import re
from pathlib import Path

from rigdyno.errors import BadValue

_HOST = re.compile(r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9_.-]*")  # never something that ssh takes for an option


def read_hosts(text: str) -> tuple[str, ...]:
    """`a,b,c`, or a file with a host a line; what stands behind a # is a remark."""
    path = Path(text)
    if "," not in text and path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        parts = [line.partition("#")[0].strip() for line in lines]
    else:
        parts = [part.strip() for part in text.split(",")]
    hosts = tuple(part for part in parts if part)
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong:
        raise BadValue(f"--hosts takes names or addresses, not '{wrong[0]}'; e.g. 10.0.0.1,10.0.0.2 or a file of them")
    if len(hosts) < 2:
        raise BadValue(f"--hosts needs this node and at least one other, not '{text}'; no such file, if it is one")
    if len(set(hosts)) < len(hosts):
        raise BadValue(f"--hosts names {max(hosts, key=hosts.count)} twice")
    return hosts
