"""What the journal of a sink holds, and claims of the sinks that it names: by the next engine, and by others who take
over its group.

A sink is a table with the name under which the group writes to it. There is one entry before each delivery is written,
and one when an engine claims a sink, so whoever reads the journal knows all sinks to which an engine of the group may
still be about to write.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from share_spark.delta.app_transactions import NONE, AppTransactions
from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.model.errors import SinkError, StateError
from share_spark.model.ids import BatchStamp
from share_spark.spark.errors import JVM_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SinkTarget(NamedTuple):
    """A table and the name under which a group writes to it (Delta's ``txnAppId``)."""

    table: Location
    app_id: str


class SinkEntry(NamedTuple):
    """``payload``: the acknowledgements that are decided by the commit, in the engine's terms; empty for a claim."""

    target: SinkTarget
    run_id: str
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        """A line of JSON, then the payload as it is."""
        table, app_id = self.target
        head = {"path": table.path, "parts": list(table.parts), "app_id": app_id, "run_id": self.run_id}
        return json.dumps(head).encode() + b"\n" + self.payload

    @classmethod
    def from_bytes(cls, content: bytes) -> SinkEntry:
        """Undo ``to_bytes``."""
        line, _, payload = content.partition(b"\n")
        head = json.loads(line)
        table = Location(path=head["path"], parts=tuple(head["parts"]))
        return cls(SinkTarget(table, head["app_id"]), head["run_id"], payload)


_log = logging.getLogger(__name__)


def entries_before(journal: Journal, writer_epoch: int) -> dict[BatchStamp, SinkEntry]:
    """Entries of older engines. One that is removed meanwhile, by an engine before, has been absorbed."""
    stamps = [stamp for stamp in journal.stamps() if stamp.writer_epoch < writer_epoch]
    contents = {stamp: journal.read(stamp) for stamp in stamps}
    return {stamp: SinkEntry.from_bytes(text) for stamp, text in contents.items() if text is not None}


def claim_sink(spark: SparkSession, target: SinkTarget, writer_epoch: int) -> int:
    """From now on older epochs cannot write there. Returns the number of the last delivery, NONE if there was none or
    the table is gone. Raises FencedError, SinkError."""
    with as_sink_error(target.table):
        if not target.table.exists(spark):
            _log.warning("sink %s is gone, and with it what was written there", target.table)
            return NONE
        return AppTransactions(spark, target.table.directory(spark)).claim(target.app_id, writer_epoch)


def claim_sinks_before(spark: SparkSession, journal: Journal, writer_epoch: int) -> None:
    """All sinks to which engines of older epochs may still be about to write. Entries stay: the next engine needs them.
    Raises FencedError, SinkError, StateError."""
    with as_state_error():
        entries = entries_before(journal, writer_epoch)
    for target in {entry.target for entry in entries.values()}:
        claim_sink(spark, target, writer_epoch)


@contextmanager
def as_sink_error(table: Location) -> Iterator[None]:
    """What Delta and Spark raise, with the sink's name."""
    try:
        yield
    except JVM_ERRORS as fault:
        raise SinkError(f"sink {table}: {first_line(fault)}") from fault


@contextmanager
def as_state_error() -> Iterator[None]:
    """What a journal raises."""
    try:
        yield
    except JVM_ERRORS as fault:
        raise StateError(f"the journal of the sink cannot be used: {first_line(fault)}") from fault
