"""Addresses of machines. By itself, so that a listing of launchers needs nothing else."""

from __future__ import annotations

import ipaddress
import socket

from rigdyno.errors import UsageError

LOOPBACK = "127.0.0.1"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can be there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(host: str) -> str:
    """What a name stands for, as this machine sees it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no name of a host"
        raise UsageError(f"can't find {host}: {reason.lower()}") from error
    return str(found[0][4][0])


def own_address_towards(host: str, port: int = 9) -> str:
    """The address of this machine by which it talks to the other; nothing is sent."""
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise UsageError(
                f"there is no way from here to {host}: {(error.strerror or str(error)).lower()}"
            ) from error
        return str(probe.getsockname()[0])
