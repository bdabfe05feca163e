"""Where a program finds the service, the records and the tables; the judge says it in the environment."""

from __future__ import annotations

import http.client
import os

import pyarrow as pa
from deltalake import write_deltalake

PLACE, SERVICE, SOURCE = "SCOREBOARD_PLACE", "SCOREBOARD_SERVICE", "SCOREBOARD_SOURCE"
"""The names of variables: a directory, the port of the service, the address of what has the records."""

GROUP, TOPIC = "scored", "records"


def place(name: str) -> str:
    """Return the path of a table, or of other files of a program."""
    return f"{os.environ[PLACE]}/{name}"


def source() -> str:
    """Return the address of the broker that has the records."""
    return os.environ[SOURCE]


def call(number: int, count: int) -> int:
    """Ask the service about a record that is delivered the ``count``-th time. Return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ[SERVICE]))
    connection.request("GET", f"/{number}/{count}")
    status = connection.getresponse().status
    connection.close()
    return status


def append(table: str, numbers: list[int]) -> None:
    """Append a row for each record to a Delta table."""
    if numbers:
        write_deltalake(place(table), pa.table({"number": pa.array(numbers, pa.int64())}), mode="append")
