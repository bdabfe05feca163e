"""Handlers that are broken as a whole: no record is to blame. The calls that they live to see are noted in a file of
their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_spark import Ack
from tests.chaos.faults import note

NOT_ON_WORKERS, WRONG_LENGTH = "not on the workers", "wrong length"
CALLS = "calls of the broken handler"

_MODULE = "only_on_the_driver"


def broken_handler(kind: str, directory: Path) -> Callable[..., Any]:
    """``kind``: one of the above."""
    return _not_on_workers(directory / "driver only") if kind == NOT_ON_WORKERS else _wrong_length(directory / CALLS)


def _not_on_workers(directory: Path) -> Callable[..., Any]:
    directory.mkdir(exist_ok=True)
    (directory / f"{_MODULE}.py").write_text("def handle(record):\n    return None\n")
    sys.path.insert(0, str(directory))
    found: Callable[..., Any] = importlib.import_module(_MODULE).handle
    return found


def _wrong_length(calls: Path) -> Callable[..., Any]:
    def handle(batch: pa.RecordBatch):  # type: ignore[no-untyped-def]
        for partition, offset, count in zip(
            *(batch.column(name).to_pylist() for name in ("partition", "offset", "delivery_count")), strict=True
        ):
            note(calls, f"{partition} {offset} {count}")
        return [Ack.ACCEPT] * (batch.num_rows - 1)

    return handle
