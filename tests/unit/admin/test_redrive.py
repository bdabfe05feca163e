"""Redrive without Spark and Kafka: what is sent, what is marked, and what happens if something fails in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from share_spark.admin.dead_letters import DeadLetters
from share_spark.admin.letters import Letter, LetterFilter
from share_spark.admin.redrive import RedriveProgress, SendRate
from share_spark.admin.redriven_record import DELIVERY_COUNT, REDRIVE_ID, delivered_before
from share_spark.admin.stored_letters import StoredLetters
from share_spark.kafka.letter_headers import Origin, origin_headers
from share_spark.model.errors import ConfigError, DeadLetterError, TopicError
from tests.support.letter_tables import add_letters, make_letters, row, set_columns
from tests.support.memory_topics import MemoryTopics

NOON_MS = 1_767_355_200_000


@pytest.fixture
def place(tmp_path: Path) -> str:
    return make_letters(tmp_path / "dead", [row(1), row(0)], [row(2)])


def marked(place: str) -> list[int]:
    return sorted(one.offset for one in DeadLetters(place).letters(LetterFilter(redriven=True)))


def test_a_letter_is_sent_to_where_it_came_from_and_says_so(tmp_path: Path) -> None:
    own = [{"key": "tenant", "value": b"a"}, {"key": "x-original-topic", "value": b"before"}]
    place = make_letters(tmp_path / "dead", [row(7, partition=1, headers=own)])
    topics = MemoryTopics()
    report = DeadLetters(place).redrive(topics)
    assert (report.sent, report.marked) == (1, 1)
    (record,) = topics.records
    assert (record.topic, record.partition, record.key, record.value) == ("orders", 1, b"key", b"7")
    (letter,) = DeadLetters(place).letters()
    origin = Origin("billing", "orders", 1, 7, NOON_MS, 5, "ValueError: no city 7")
    assert letter.redrive_id is not None
    assert list(record.headers) == [
        ("tenant", b"a"),
        *origin_headers(origin),
        (REDRIVE_ID, letter.redrive_id.encode()),
        (DELIVERY_COUNT, b"5"),
    ]
    assert letter.redriven_at is not None


def test_in_the_order_in_which_they_were_archived_and_once(place: str) -> None:
    topics = MemoryTopics()
    assert DeadLetters(place).redrive(topics).sent == 3
    assert topics.values == [b"0", b"1", b"2"]
    assert DeadLetters(place).redrive(topics).sent == 0
    add_letters(Path(place), [row(3)])
    assert DeadLetters(place).redrive(topics, LetterFilter(group="billing")).sent == 1
    assert (topics.values[3:], marked(place)) == ([b"3"], [0, 1, 2, 3])


def test_again_is_another_redrive(place: str) -> None:
    topics = MemoryTopics()
    for _ in range(2):
        assert DeadLetters(place).redrive(topics, LetterFilter(offsets=(1, 1)), again=True).marked == 1
    first, second = topics.ids
    assert first != second


def test_a_corrected_value_is_sent_and_the_first_one_stays(place: str) -> None:
    set_columns(place, 1, corrected_value=b"better")
    topics = MemoryTopics()
    DeadLetters(place).redrive(topics, LetterFilter(offsets=(1, 1)))
    (letter,) = DeadLetters(place).letters(LetterFilter(redriven=True))
    assert (topics.values, letter.value, letter.corrected_value) == ([b"better"], b"1", b"better")


def test_one_that_dies_before_it_marks_is_repeated_with_the_same_ids(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = MemoryTopics()

    def dies(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(StoredLetters, "mark", dies)
        with pytest.raises(KeyboardInterrupt):
            DeadLetters(place).redrive(topics)
    assert marked(place) == []
    assert DeadLetters(place).redrive(topics).marked == 3
    assert topics.ids[:3] == topics.ids[3:]


def test_what_cannot_be_marked_is_said(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise DeadLetterError("disk full")

    monkeypatch.setattr(StoredLetters, "mark", refuses)
    with pytest.raises(DeadLetterError, match=r"^3 letters were sent and could not be marked .*disk full.*same ids$"):
        DeadLetters(place).redrive(MemoryTopics())


def test_where_the_target_fails_what_was_sent_is_marked(place: str) -> None:
    topics = MemoryTopics(refused=[b"1"])
    with pytest.raises(TopicError, match=r"^2 of 3 letters were sent, but not orders:0:1: the broker said no$"):
        DeadLetters(place).redrive(topics)
    assert marked(place) == [0, 2]
    topics.refused = ()
    assert DeadLetters(place).redrive(topics).sent == 1
    assert topics.values == [b"0", b"2", b"1"]


def test_a_letter_that_is_corrected_while_it_is_sent_is_sent_again(place: str) -> None:
    """What the first redrive sent is not what the table says now."""
    topics = MemoryTopics(meanwhile=lambda: set_columns(place, 1, corrected_value=b"better"))
    report = DeadLetters(place).redrive(topics)
    assert (report.sent, report.marked, marked(place)) == (3, 2, [0, 2])
    topics.meanwhile = lambda: None
    assert DeadLetters(place).redrive(topics).marked == 1
    assert topics.values == [b"0", b"1", b"2", b"better"]


def test_letters_that_are_deleted_while_they_are_sent_are_gone(place: str) -> None:
    topics = MemoryTopics(meanwhile=lambda: DeadLetters(place).purge(LetterFilter()))
    report = DeadLetters(place).redrive(topics)
    assert (report.sent, report.marked) == (3, 0)


def test_two_at_once_send_the_same_ids(place: str) -> None:
    first, second = MemoryTopics(), MemoryTopics()
    first.meanwhile = lambda: DeadLetters(place).redrive(second)
    assert DeadLetters(place).redrive(first).marked == 0
    assert (first.ids, marked(place)) == (second.ids, [0, 1, 2])


def test_pieces_of_a_file_are_marked_in_the_file_that_took_its_place(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("share_spark.admin.redrive._PIECE", 1)
    monkeypatch.setattr("share_spark.admin.redrive._MARKED_TOGETHER", 1)
    assert DeadLetters(place).redrive(MemoryTopics()).marked == 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no topic": ({"topics": {"bills": {0}}}, "topic 'orders' does not exist"),
    "no partition": ({"topics": {"orders": {1}}}, "topic 'orders' has no partition 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_sent_where_a_partition_is_missing(place: str, case: str) -> None:
    where, message = REFUSED[case]
    topics = MemoryTopics(**where)
    with pytest.raises(TopicError, match=message):
        DeadLetters(place).redrive(topics)
    assert (topics.records, marked(place)) == ([], [])


def test_nothing_is_sent_that_could_not_be_marked(tmp_path: Path) -> None:
    properties = {"share_spark.table": "dead_letters", "delta.appendOnly": "true"}
    place = make_letters(tmp_path / "dead", [row(1)], properties=properties)
    topics = MemoryTopics()
    with pytest.raises(DeadLetterError, match="its rows must not be changed"):
        DeadLetters(place).redrive(topics)
    assert topics.records == []


def test_another_topic_has_partitions_of_its_own(place: str) -> None:
    topics = MemoryTopics(topics={"repaired": {0}})
    assert DeadLetters(place).redrive(topics, to_topic="repaired", limit=2).sent == 2
    assert [(record.topic, record.partition) for record in topics.records] == [("repaired", None)] * 2


def test_no_more_than_the_rate_and_each_second_is_reported(tmp_path: Path) -> None:
    """At the time 0, 1 and 2: pieces of a second each."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    rate = SendRate(2, clock=lambda: now[0], sleep=sleep)
    for records in (rate.piece, rate.piece, 1):
        rate.wait(records)
    assert (rate.piece, slept, rate.elapsed_s()) == (2, [1.0, 1.0], 2.0)
    assert (SendRate(0.1).piece, SendRate(1e9).piece, SendRate(None).early_s()) == (1, 1_000, 0)
    reported: list[RedriveProgress] = []
    place = make_letters(tmp_path / "dead", [row(1), row(2)])
    DeadLetters(place).redrive(MemoryTopics(), progress=reported.append)
    assert [(one.sent, one.total) for one in reported] == [(2, 2)]


def test_a_slow_redrive_marks_before_it_waits(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it waits leaves nothing to be sent twice."""
    monkeypatch.setattr(SendRate, "piece", 1)
    monkeypatch.setattr(SendRate, "early_s", lambda _: 60.0)
    seen: list[list[int]] = []
    topics = MemoryTopics(meanwhile=lambda: seen.append(marked(place)))
    monkeypatch.setattr(SendRate, "wait", lambda *_: None)
    assert DeadLetters(place).redrive(topics, rate_per_s=1).marked == 3
    assert seen == [[], [0], [0, 1]]


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_is_above_zero(place: str, rate: float) -> None:
    with pytest.raises(ConfigError, match="is not above 0"):
        DeadLetters(place).redrive(MemoryTopics(), rate_per_s=rate)


def test_the_deliveries_of_all_its_lives_are_counted(place: str, tmp_path: Path) -> None:
    """A record that fails again under its new offset is a letter that has the headers of its redrive."""
    first, second = MemoryTopics(), MemoryTopics()
    DeadLetters(place).redrive(first, LetterFilter(offsets=(1, 1)))
    headers = [{"key": name, "value": value} for name, value in first.records[0].headers]
    later = make_letters(tmp_path / "later", [row(9, headers=headers, delivery_count=2)])
    DeadLetters(later).redrive(second)
    names = [name for name, _ in second.records[0].headers]
    assert len(names) == len(set(names)) == len(headers)
    said = dict(second.records[0].headers)
    assert (said["__dlq.errors.offset"], said["__dlq.errors.delivery.count"], said[DELIVERY_COUNT]) == (
        b"9",
        b"2",
        b"7",
    )


def test_a_count_that_is_none_is_not_believed() -> None:
    letter = Letter(**{**row(1), "headers": ((DELIVERY_COUNT, b"many"),)})
    assert delivered_before(letter) == 0
