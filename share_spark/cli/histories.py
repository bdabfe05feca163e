"""Histories of records for the command line: from the files of the state log, without a JVM, or by Spark where only
Spark can read the log, only Hadoop knows its storage, or it is too long to be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from share_spark.admin.record_life import read_record_history
from share_spark.admin.state_reader import StateReader
from share_spark.audit.record_events import RecordHistory
from share_spark.cli.command import command_session
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.model.errors import StateError
from share_spark.spark.public_files import local_path


class RecordOfGroup(NamedTuple):
    """A record of a group."""

    group_id: str
    topic: str
    partition: int
    offset: int


def histories_of(location: str, records: Sequence[RecordOfGroup]) -> list[RecordHistory]:
    """Return the histories in the order of ``records``. Raises ConfigError (no such topic or partition), StateError."""
    place = Location.parse(location)
    found = _without_spark(location, records) if place.path is not None else None
    return found if found is not None else _by_spark(place, records)


def _without_spark(location: str, records: Sequence[RecordOfGroup]) -> list[RecordHistory] | None:
    try:
        reader = StateReader.open(location)
        found = [read_record_history(reader, **one._asdict()) for one in records]
    except StateError as fault:
        if isinstance(fault.__cause__, UnknownTableError):
            return None
        raise
    except (OSError, pa.ArrowException):
        if local_path(location) is not None:
            raise  # Spark would be refused as well
        return None  # an unknown scheme, or missing credentials
    return None if any(one.is_cut for one in found) else found


def _by_spark(place: Location, records: Sequence[RecordOfGroup]) -> list[RecordHistory]:
    from share_spark.audit.history import collect_record_history

    with command_session("share-spark history") as spark:
        return [collect_record_history(spark, place, **one._asdict()) for one in records]
