"""The entries in the journal of a sink, and claims of the sinks that it names: by the next engine, and by others who
take over its group.

A sink is a table with the name under which the group writes to it. There is one entry before each delivery is written,
and one when an engine claims a sink, so a reader of the journal knows all sinks to which an engine of the group may
still be about to write.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from share_spark.delta.app_transactions import NONE, AppTransactions
from share_spark.delta.journal import OUTPUT, Journal
from share_spark.delta.location import Location
from share_spark.engine.ports import Claim
from share_spark.model.errors import SinkError, StateError
from share_spark.model.ids import BatchStamp
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.on_demand import AnySpark, given_session, session_of


class SinkTarget(NamedTuple):
    """A table and the name under which a group writes to it (Delta's ``txnAppId``)."""

    table: Location
    app_id: str


class SinkEntry(NamedTuple):
    """A journal entry. ``payload``: the acknowledgements that the commit decides, in the engine's terms, or empty
    (claim)."""

    target: SinkTarget
    run_id: str
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        """Return a line of JSON, then the payload as it is."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWriter:
    """The engine that writes here, once it has claimed its group. ``app_id``: the name under which the group writes,
    with its state, as two states may know a group of the same name. ``journal``: the group's, for this purpose only.
    """

    writer_epoch: int
    run_id: str
    member_id: str
    app_id: str
    journal: Journal

    @classmethod
    def of(cls, spark: AnySpark, claim: Claim) -> SinkWriter:
        """Return the writer with its journal beside the state. Raises StateError."""
        with as_state_error():
            journal = Journal(spark, claim.directory, OUTPUT, claim.group_id)
        return cls(
            writer_epoch=claim.writer_epoch,
            run_id=claim.run_id,
            member_id=claim.member_id,
            app_id=f"share_spark/{claim.group_id}@{claim.log_id}",
            journal=journal,
        )


class LeftOutput(NamedTuple):
    """The last delivery of an earlier engine that is in a sink and was not absorbed."""

    stamp: BatchStamp
    payload: bytes


_log = logging.getLogger(__name__)


def settle(
    writer: SinkWriter,
    own: Sequence[SinkTarget],
    claimed: Callable[[SinkTarget], int],
    last_counted: BatchStamp,
) -> LeftOutput | None:
    """Claim the sinks in ``own`` and all to which earlier engines may be about to write; find what the last of them has
    written, and drop the other entries. ``claimed``: claims one, and returns the number of the last delivery there.

    Raises FencedError, SinkError, StateError.
    """
    delivered, left = _claim_all(writer, own, claimed)
    written = [stamp for stamp, entry in left.items() if delivered[entry.target] == stamp.number]
    last = max(written, default=None)
    _check_explained(delivered, set(written), claimed, last_counted)
    with as_state_error():
        for stamp in left.keys() - {last}:
            writer.journal.remove(stamp)
    return None if last is None else LeftOutput(last, left[last].payload)


def _claim_all(
    writer: SinkWriter, own: Sequence[SinkTarget], claimed: Callable[[SinkTarget], int]
) -> tuple[dict[SinkTarget, int], dict[BatchStamp, SinkEntry]]:
    """Return the number of the last delivery to each target, and the entries of older engines.

    They are listed after the claims: an older engine makes its entry before it appends, and appends before the claim or
    not at all, so the entry of every delivery is in the list unless an engine has absorbed it and removed it.
    """
    delivered = {target: claimed(target) for target in own}
    while True:
        with as_state_error():
            left = entries_before(writer.journal, writer.writer_epoch)
        unclaimed = {entry.target for entry in left.values()} - delivered.keys()
        if not unclaimed:
            return delivered, left
        delivered |= {target: claimed(target) for target in unclaimed}


def _check_explained(
    delivered: Mapping[SinkTarget, int],
    written: Collection[BatchStamp],
    claimed: Callable[[SinkTarget], int],
    last_counted: BatchStamp,
) -> None:
    """Raise StateError for a delivery without an entry that no later micro-batch has absorbed: the journal is damaged,
    unless a later engine has claimed the sink already (FencedError)."""
    numbers = {stamp.number for stamp in written}
    for target, number in delivered.items():
        if number in numbers or number < last_counted.number:
            continue
        claimed(target)
        stamp = BatchStamp.of_number(number)
        raise StateError(
            f"sink {target.table} holds rows of micro-batch {stamp.batch_id} of writer epoch "
            f"{stamp.writer_epoch}, whose acknowledgements are neither in the state nor in the journal beside it"
        )


def entries_before(journal: Journal, writer_epoch: int) -> dict[BatchStamp, SinkEntry]:
    """Return the entries of older engines. One that its engine removes meanwhile has been absorbed."""
    stamps = [stamp for stamp in journal.stamps() if stamp.writer_epoch < writer_epoch]
    contents = {stamp: journal.read(stamp) for stamp in stamps}
    return {stamp: SinkEntry.from_bytes(text) for stamp, text in contents.items() if text is not None}


def claim_sink(spark: AnySpark, target: SinkTarget, writer_epoch: int) -> int:
    """Stop older epochs from writing there. Returns the number of the last delivery, NONE if there was none or the
    table is gone. Raises FencedError, SinkError."""
    with as_sink_error(target.table):
        spark = _reaching(spark, target.table)
        if not target.table.exists(spark):
            _log.warning("sink %s is gone, and with it what was written there", target.table)
            return NONE
        return AppTransactions(spark, target.table.directory(spark)).claim(target.app_id, writer_epoch)


def _reaching(spark: AnySpark, table: Location) -> AnySpark:
    """Return a session where the path does not exist on this machine: only a session may know its file system."""
    if given_session(spark) is not None or table.exists(spark):
        return spark
    return session_of(spark, f"sink {table} is not to be seen on this machine")


def claim_sinks_before(spark: AnySpark, journal: Journal, writer_epoch: int) -> None:
    """Claim all sinks to which engines of older epochs may still be about to write. Entries stay: the next engine needs
    them. Raises FencedError, SinkError, StateError."""
    with as_state_error():
        entries = entries_before(journal, writer_epoch)
    for target in {entry.target for entry in entries.values()}:
        claim_sink(spark, target, writer_epoch)


@contextmanager
def as_sink_error(table: Location) -> Iterator[None]:
    """Raise what Delta and Spark raise as SinkError with the sink's name."""
    try:
        yield
    except JVM_ERRORS as fault:
        raise SinkError(f"sink {table}: {first_line(fault)}") from fault


@contextmanager
def as_state_error() -> Iterator[None]:
    """Raise what a journal raises as StateError."""
    try:
        yield
    except JVM_ERRORS as fault:
        raise StateError(f"the journal of the sink cannot be used: {first_line(fault)}") from fault
