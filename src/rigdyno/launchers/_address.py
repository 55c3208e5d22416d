"""HOST:PORT, taken apart. By itself, so that a listing of launchers needs nothing else."""

from __future__ import annotations


def split_endpoint(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
