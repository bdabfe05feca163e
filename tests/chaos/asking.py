"""A handler that waits: it asks a service on the loopback interface what to do with a record."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from share_spark import Ack, Record
from tests.chaos.faults import IN_HANDLER, note, strike_once
from tests.chaos.script import OrderEvent, Script


async def ask(script: Script, port: int, record: Record) -> Any:
    """The answer. The call is noted first, as that of any other handler."""
    place = record.partition, record.offset, record.delivery_count
    if record.key is not None:
        note(script.order, str(OrderEvent(False, *place)))
    note(script.calls, " ".join(map(str, place)))
    status, retry_after = await _asked(port, "/".join(map(str, place)) + "/" + quote(record.value or b""))
    if script.fault is not None and script.fault.point == IN_HANDLER and record.offset % 7 == 3:
        strike_once(script.fault, script.struck)
    if status == 429:
        return Ack.throttled(retry_after=retry_after)
    if status == 503:
        raise ValueError("not yet")
    if record.key is not None:
        note(script.order, str(OrderEvent(True, *place)))
    if status == 422:
        return Ack.reject("never")
    return Ack.ACCEPT, {"part": record.partition, "off": record.offset, "cnt": record.delivery_count, "price": 9.99}


async def _asked(port: int, path: str) -> tuple[int, float]:
    """The status, and after how many seconds to ask again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    finally:
        writer.close()
    headers = dict(line.split(": ") for line in lines[1:] if line)
    return int(lines[0].split()[1]), float(headers.get("Retry-After", 0))
