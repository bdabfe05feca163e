"""Claims of a sink with Spark's Delta writer alone: appends without rows, each of which sets one ``txn`` entry.

What Delta's classes do in one commit (``app_transactions``) takes several here, and an engine may die after any of
them. ``own`` is the number of the claim:

1. the progress entry is set to ``2 * own``: a claim by these steps begins;
2. the writer's entry is set to ``own``, with a note of the last delivery as of the version that was looked at. Delta
   refuses an append that another one of the same writer has overtaken, and skips a lower number: from here on no older
   engine can write, and what it has written since that look is in the commits between;
3. the commits are read back, from the newest one to that version, for the last delivery; the delivered entry is set;
4. the progress entry is set to ``2 * own + 1``: the claim is settled.

A claim whose progress entry is ``2 * own`` is unsettled: its delivered entry may be older than the last delivery. The
next engine, by either way of claiming, settles it before it uses the entry. Commits are cleaned up after weeks; if
those of an unsettled claim are gone, the last delivery is not known any more, and the sink cannot be claimed.

All entries only grow, so two engines in the middle of these steps do each other no harm: they find the same delivery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from share_spark.delta.commit_files import CommitFiles, note_fields, parse_commit
from share_spark.model.errors import FencedError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.spark import functions as F
from share_spark.spark.delta_log import NONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOKS = 5
"""The number of attempts to read a log that is being cleaned up."""

_NOTE = "share_spark.claim"

_FILLED_BY_DELTA = ("delta.generation", "delta.identity", "CURRENT_DEFAULT")


def is_filled_by_delta(metadata: Mapping[str, object]) -> bool:
    """Return whether Delta fills a column with this metadata: generated, identity, or with a default."""
    return any(name.startswith(_FILLED_BY_DELTA) for name in metadata)


def is_delivery(number: int) -> bool:
    """Return whether the number is a delivery's; else it is a claim's, or there is none."""
    return number != NONE and BatchStamp.of_number(number).batch_id >= 0


def delivered_id(app_id: str) -> str:
    """Return the name of the writer's entry for its last delivery before a claim."""
    return f"{app_id}/delivered"


def progress_id(app_id: str) -> str:
    """Return the name of the writer's entry for the progress of a claim by several appends."""
    return f"{app_id}/claiming"


def is_unsettled(current: int, progress: int) -> bool:
    """Return whether the engine whose claim is ``current`` died before it had set the delivered entry."""
    return current != NONE and not is_delivery(current) and progress == 2 * current


class ClaimNote(NamedTuple):
    """The note in the commit of a claim by several appends: the last delivery at ``version``."""

    version: int
    delivered: int

    def to_json(self) -> str:
        """Return the note as ``userMetadata``."""
        return json.dumps({_NOTE: self._asdict()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> ClaimNote | None:
        """Parse a note; None if the text is of another writer."""
        fields = note_fields(text).get(_NOTE)
        return cls(**fields) if isinstance(fields, dict) and fields.keys() == set(cls._fields) else None


class TxnCommit(NamedTuple):
    """The ``txn`` entries that one commit sets, and its ``userMetadata``."""

    version: int
    numbers: dict[str, int]
    note: str | None


class TxnEntries(NamedTuple):
    """The newest ``txn`` number of each requested writer, at ``version``; NONE if it has none."""

    version: int
    numbers: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicClaim:
    """The claims of one writer of one table."""

    spark: SparkSession
    directory: str
    app_id: str

    def claim(self, own: int) -> int:
        """Claim the sink; return the number of the last delivery. Raises FencedError, SinkError, Spark's errors
        (retry)."""
        version, current, delivered, progress = self._entries()
        self._refuse_newer(current, own)
        if is_unsettled(current, progress):
            self.settle(current)
            version, current, delivered, progress = self._entries()
        if current >= own:
            self._refuse_newer(current, own)
            return delivered
        before = current if is_delivery(current) else delivered
        self._set(progress_id(self.app_id), 2 * own)
        self._set(self.app_id, own, ClaimNote(version, before).to_json())
        # Delta skips a lower number silently: check the log.
        current = self._entries()[1]
        self._refuse_newer(current, own)
        if current < own:
            raise SinkError(f"sink {self.directory} cannot be claimed: the claim is not in its log")
        return self.settle(own)

    def _refuse_newer(self, current: int, own: int) -> None:
        if current > own:
            raise FencedError(f"another engine has claimed {self.app_id} in {self.directory}; this one stops")

    def settle(self, claim: int) -> int:
        """Find the last delivery before the unsettled ``claim``, note it, and return it. Raises SinkError."""
        delivered = self._last_delivery()
        if delivered != NONE:
            self._set(delivered_id(self.app_id), delivered)
        self._set(progress_id(self.app_id), 2 * claim + 1)
        return delivered

    def _entries(self) -> tuple[int, int, int, int]:
        """Return a version, and the writer's number, delivered entry and progress entry at it."""
        wanted = [self.app_id, delivered_id(self.app_id), progress_id(self.app_id)]
        version, found = entries_in_log(self.spark, self.directory, wanted)
        current, delivered, progress = (found[name] for name in wanted)
        return version, current, delivered, progress

    def _last_delivery(self) -> int:
        """Search from the newest commit back for a delivery, or for an entry that names the last one before it."""
        noted: ClaimNote | None = None
        reached = -1
        for commit in commits_back(self.spark, self.directory):
            reached = commit.version
            if noted is not None and reached <= noted.version:
                return noted.delivered
            number = commit.numbers.get(self.app_id, NONE)
            if is_delivery(number):
                return number
            if delivered_id(self.app_id) in commit.numbers:
                return commit.numbers[delivered_id(self.app_id)]
            note = ClaimNote.from_json(commit.note) if number != NONE else None
            if number != NONE and note is None:
                return NONE  # a claim in one commit, which found no delivery
            noted = noted or note
        if reached == 0:
            return NONE
        raise SinkError(
            f"sink {self.directory} cannot be claimed: an engine has died in the middle of a claim, and the commits "
            "that name its last delivery have been cleaned up"
        )

    def _set(self, app_id: str, number: int, note: str | None = None) -> None:
        """Append no rows, with an entry; Delta skips it if the entry is as high already."""
        from pyspark.sql.types import StructType

        table = self.spark.read.format("delta").load(self.directory).schema
        fields = [field for field in table.fields if not is_filled_by_delta(field.metadata)]
        rows = self.spark.createDataFrame([], StructType(fields))
        writer = rows.write.format("delta").mode("append").option("txnAppId", app_id)
        writer = writer if note is None else writer.option("userMetadata", note)
        writer.option("txnVersion", str(number)).save(self.directory)


# ---------------------------------------------------------------------------------- the log, read by ourselves


def entries_in_log(spark: SparkSession, directory: str, app_ids: Sequence[str]) -> TxnEntries:
    """Return the entries of the commits since the last checkpoint, else of the checkpoint."""
    files = CommitFiles.at(spark, directory)
    for _ in range(_LOOKS):
        found = dict.fromkeys(app_ids, NONE)
        checkpoint, paths = files.checkpoint()
        version = files.latest_version()
        found |= _entries_in_checkpoint(spark, paths, app_ids) if paths else {}
        texts = [files.text(number) for number in range(checkpoint + 1, version + 1)]
        if all(text is not None for text in texts):
            for text in texts:
                numbers = parse_commit(text or "").transactions
                found |= {name: number for name, number in numbers.items() if name in found}
            return TxnEntries(version, found)
    raise SinkError(f"the log of {directory} changes while it is read")


def commits_back(spark: SparkSession, directory: str) -> Iterator[TxnCommit]:
    """Yield the commits from the newest down to the oldest that log clean-up has left."""
    files = CommitFiles.at(spark, directory)
    version = files.latest_version()
    while version >= 0 and (text := files.text(version)) is not None:
        commit = parse_commit(text)
        yield TxnCommit(version, commit.transactions, commit.note)
        version -= 1


def _entries_in_checkpoint(spark: SparkSession, paths: Sequence[str], app_ids: Iterable[str]) -> dict[str, int]:
    """Return the entries of a checkpoint in one file or in several."""
    is_json = paths[0].endswith(".json")
    rows = spark.read.json(list(paths)) if is_json else spark.read.parquet(*paths)
    if "txn" not in rows.columns:
        return {}
    txn = F.col("txn")
    chosen = rows.where(txn["appId"].isin(list(app_ids))).select(txn["appId"], txn["version"])
    return {str(name): int(number) for name, number in chosen.collect()}
