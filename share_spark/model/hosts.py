"""Hosts as addresses and requests name them."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_in(header: str) -> str:
    """Of a request's header ``Host``, without the port: of ``localhost:80`` and ``[::1]:80`` what is before it."""
    name = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return name.lower()
