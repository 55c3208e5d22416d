"""Addresses of machines. A module of its own, so that listing the launchers imports nothing else."""

from __future__ import annotations

import ipaddress
import socket

from rigdyno.base.errors import UsageError, os_error_reason

LOOPBACK = "127.0.0.1"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of 'HOST:PORT'; an IPv6 address may be in brackets."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def address_family(host: str) -> socket.AddressFamily:
    """Return the family of a numeric address: IPv6 if it has a colon, else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_loopback(host: str) -> bool:
    """Return whether the host can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def resolve_host(host: str) -> str:
    """Return the address that a host name stands for on this machine."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no name of a host"
        raise UsageError(f"can't find {host}: {reason.lower()}") from error
    return str(found[0][4][0])


def find_own_address(host: str, port: int = 9) -> str:
    """Return the address of this machine that packets to `host` would come from. Nothing is sent."""
    with socket.socket(address_family(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise UsageError(f"there is no way from here to {host}: {os_error_reason(error)}") from error
        return str(probe.getsockname()[0])
