"""Hosts as addresses and requests name them."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_in(header: str) -> str:
    """Return the host of a request's header ``Host``: of ``localhost:80`` and ``[::1]:80`` what is before the port."""
    name = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return name.lower()
