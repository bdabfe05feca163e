"""Dead letters that an engine announced and did not write: the next one decides which count, and writes them once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.api.share_group import ShareGroup
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.engine.ports import Claim, DeadLetter
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.errors import DeadLetterError
from share_spark.model.ids import NO_STAMP, BatchStamp, TopicPartition
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters, NoDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.output.letter_journals import LetterJournals
from share_spark.state.tables import log_table
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.claims import claim_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "billing"


class DeadLetterPlace:
    """A topic of six records, a dead-letter table, and a state."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory, self.dead = spark, directory, str(directory / "dead")
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 1)
        self.log.append("orders", [Message(b"%d" % number) for number in range(6)])

    def group(self, *, has_target: bool = True) -> ShareGroup:
        """Rejects everything, two records a micro-batch; each of these begins a segment."""
        group = ShareGroup(GROUP, spark=self.spark, state=str(self.directory / "state"))
        group = group.table(str(self.directory / "topics")).subscribe("orders").process(reject)
        group = group.dead_letter(self.dead) if has_target else group
        options = {
            "share.auto.offset.reset": "earliest",
            "max.records.per.trigger": 2,
            "share.coordinator.snapshot.update.records.per.snapshot": 1,
        }
        return group.options(**options).trigger(availableNow=True)

    def port(
        self,
        last_counted: BatchStamp = NO_STAMP,
        *,
        epoch: int = 1,
        truncated: Mapping[TopicPartition, int] | None = None,
    ) -> AnnouncedDeadLetters:
        """Of a new run, which has claimed the group with ``epoch`` and recovered."""
        target = DeltaDeadLetters(self.dead)
        target.check(self.spark)
        port = AnnouncedDeadLetters(spark=self.spark, log=self.log, target=target)
        port.recover(self.claim(epoch), last_counted, truncated or {})
        return port

    def claim(self, epoch: int) -> Claim:
        return claim_of(GROUP, str(self.directory / "state" / "share_state_log"), epoch=epoch)

    @property
    def journals(self) -> LetterJournals:
        return LetterJournals.of(self.spark, self.claim(0))

    @property
    def journal(self) -> Journal:
        return self.journals.announced

    def waiting(self) -> list[BatchStamp]:
        return self.journals.waiting.stamps()

    def refuse(self, condition: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.dead}` ADD CONSTRAINT refused CHECK ({condition})")

    def relent(self) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.dead}` DROP CONSTRAINT refused")

    def letters(self) -> list[int]:
        return sorted(row.offset for row in Location.parse(self.dead).load(self.spark).select("offset").collect())

    def batches(self) -> list[int]:
        """Micro-batches that still have rows in the state log."""
        rows = log_table(Location.parse(str(self.directory / "state"))).load(self.spark).where("kind <> 'claim'")
        return sorted(row.batch_id for row in rows.select("batch_id").distinct().collect())


def reject(_record: Record) -> Ack:
    return Ack.REJECT


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> DeadLetterPlace:
    return DeadLetterPlace(spark, tmp_path)


def letter(offset: int) -> list[DeadLetter]:
    return [DeadLetter(TopicPartition("orders", 0), offset, offset, 1, "rejected", None)]


def test_letters_outlive_the_rows_of_their_micro_batch(place: DeadLetterPlace) -> None:
    """The closing micro-batch begins a segment, and the one that archived is pruned with its own."""
    DeltaDeadLetters(place.dead).check(place.spark)
    place.refuse("offset < 0")
    query = place.group().start()
    with pytest.raises(DeadLetterError):
        query.awaitTermination(120)
    # Letters are written beside the micro-batches, and a table that refuses rows takes its time.
    assert (place.letters(), place.journal.stamps()[0]) == ([], BatchStamp(1, 1))
    assert 1 not in place.batches(), "micro-batch 1 was not pruned, so this shows nothing"
    place.relent()
    assert place.group().start().awaitTermination(120)
    assert (place.letters(), place.journal.stamps()) == ([0, 1, 2, 3, 4, 5], [])


def test_letters_wait_for_a_run_with_a_target(place: DeadLetterPlace, caplog: pytest.LogCaptureFixture) -> None:
    DeltaDeadLetters(place.dead).check(place.spark)
    place.refuse("offset < 0")
    with pytest.raises(DeadLetterError):
        place.group().start().awaitTermination(120)
    place.relent()
    announced = place.journal.stamps()
    assert announced[0] == BatchStamp(1, 1)
    for _ in range(2):
        caplog.clear()
        assert place.group(has_target=False).start().awaitTermination(120)
        warnings = [text for text in caplog.messages if "this run has no dead-letter target" in text]
        said = f"the dead letters of {len(announced)} micro-batch(es) wait to be wr"
        assert [text[: len(said)] for text in warnings] == [said]
    assert (place.letters(), place.journal.stamps(), place.waiting()) == ([], [], announced)
    assert place.group().start().awaitTermination(120)
    written = place.letters()
    assert (written[:2], len(written), place.journal.stamps(), place.waiting()) == ([0, 1], 2 * len(announced), [], [])


@pytest.mark.parametrize(
    ("last_counted", "withdrawn", "written"),
    [
        (BatchStamp(1, 4), False, []),
        (BatchStamp(1, 5), False, [0]),
        (BatchStamp(1, 5), True, [0]),
        (BatchStamp(1, 6), True, []),
    ],
)
def test_a_run_without_target_judges_and_keeps(
    place: DeadLetterPlace, last_counted: BatchStamp, withdrawn: bool, written: list[int]
) -> None:
    place.port().announce(BatchStamp(1, 5), letter(0))
    if withdrawn:
        place.port().withdraw(BatchStamp(1, 5))
    NoDeadLetters(spark=place.spark).recover(place.claim(2), last_counted, {})
    assert (place.letters(), place.journal.stamps(), len(place.waiting())) == ([], [], len(written))
    place.port(BatchStamp(2, 7), epoch=3)
    assert (place.letters(), place.waiting()) == (written, [])


@pytest.mark.parametrize(
    ("last_counted", "written"),
    [
        (BatchStamp(1, 4), []),
        (BatchStamp(1, 5), [0]),
        (BatchStamp(1, 9), [0]),
        (BatchStamp(2, 0), []),
        (BatchStamp(0, 9), []),
    ],
)
def test_what_was_announced_counts_up_to_the_last_micro_batch_of_its_engine(
    place: DeadLetterPlace, last_counted: BatchStamp, written: list[int]
) -> None:
    place.port().announce(BatchStamp(1, 5), letter(0))
    place.port(last_counted, epoch=3)
    assert (place.letters(), place.journal.stamps()) == (written, [])


def test_what_a_successor_has_announced_is_left_alone(place: DeadLetterPlace) -> None:
    """This one has slept since its claim."""
    place.port(epoch=2).announce(BatchStamp(2, 5), letter(0))
    place.port(BatchStamp(0, 9), epoch=1)
    place.port(BatchStamp(0, 9), epoch=2)
    assert (place.letters(), place.journal.stamps()) == ([], [BatchStamp(2, 5)])


@pytest.mark.parametrize(("last_counted", "written"), [(BatchStamp(1, 5), [0]), (BatchStamp(1, 6), [])])
def test_what_was_withdrawn_counts_only_as_the_last(
    place: DeadLetterPlace, last_counted: BatchStamp, written: list[int]
) -> None:
    port = place.port()
    port.announce(BatchStamp(1, 5), letter(0))
    port.withdraw(BatchStamp(1, 5))
    port.withdraw(BatchStamp(1, 5))
    port.withdraw(BatchStamp(1, 4))
    place.port(last_counted, epoch=3)
    assert (place.letters(), place.journal.stamps()) == (written, [])


def test_where_letters_are_refused_no_later_ones_are_written(place: DeadLetterPlace) -> None:
    """In a table with a higher number they would be taken for written."""
    port = place.port()
    port.announce(BatchStamp(1, 10), letter(0))
    port.announce(BatchStamp(1, 11), letter(1))
    place.refuse("offset <> 0")
    with pytest.raises(DeadLetterError):
        place.port(BatchStamp(1, 11), epoch=2)
    assert (place.letters(), place.waiting()) == ([], [BatchStamp(1, 10), BatchStamp(1, 11)])
    place.relent()
    place.port(BatchStamp(1, 11), epoch=2)
    assert (place.letters(), place.journal.stamps(), place.waiting()) == ([0, 1], [], [])


@pytest.mark.parametrize("found_by", ["its engine", "a run without target", "the next engine"])
def test_what_a_truncation_took_is_not_written(place: DeadLetterPlace, found_by: str) -> None:
    """Other records have these offsets now."""
    cut, stamp = {TopicPartition("orders", 0): 2}, BatchStamp(1, 5)
    port = place.port()
    port.announce(stamp, [DeadLetter(TopicPartition("orders", 0), 1, 4, 1, "rejected", None), *letter(5)])
    if found_by == "its engine":
        port.truncate(cut)
        port.write(stamp)
    elif found_by == "a run without target":
        untargeted = NoDeadLetters(spark=place.spark)
        untargeted.recover(place.claim(2), stamp, {})
        untargeted.truncate(cut)
        assert (place.journal.stamps(), place.waiting()) == ([], [stamp])
        place.port(stamp, epoch=3)
    else:
        place.port(stamp, epoch=2, truncated=cut)
    assert (place.letters(), place.journal.stamps(), place.waiting()) == ([1], [], [])


def test_letters_of_several_micro_batches_are_one_append(
    place: DeadLetterPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine dies before it has removed their entries: the next one does not write them again."""
    stamps = [BatchStamp(1, 5), BatchStamp(1, 6)]
    port = place.port()
    for number, stamp in enumerate(stamps):
        port.announce(stamp, letter(number))
    version = CommitFiles.at(place.spark, place.dead).latest_version()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", refuse_to_remove)
        with pytest.raises(DeadLetterError):
            port.write_together(stamps)
    assert (place.letters(), place.journal.stamps()) == ([0, 1], stamps)
    assert CommitFiles.at(place.spark, place.dead).latest_version() == version + 1
    place.port(stamps[-1], epoch=2)
    assert (place.letters(), place.journal.stamps(), place.waiting()) == ([0, 1], [], [])


def refuse_to_remove(*_: object) -> None:
    raise OSError("read-only")


def test_what_a_successor_announces_is_not_for_an_engine_that_it_has_replaced(place: DeadLetterPlace) -> None:
    """One that was frozen between its claim and its recovery."""
    place.port(epoch=3).announce(BatchStamp(3, 0), letter(0))
    place.port(BatchStamp(1, 5), epoch=2)
    assert (place.letters(), place.journal.stamps()) == ([], [BatchStamp(3, 0)])
    place.port(BatchStamp(3, 0), epoch=4)
    assert (place.letters(), place.journal.stamps()) == ([0], [])
