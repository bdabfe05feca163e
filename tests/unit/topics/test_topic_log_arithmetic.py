"""Spans, reads, tasks, and what commits say: the arithmetic under both topic logs."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.delta.commit_files import CommitFile, parse_commit
from share_spark.delta.location import Location
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.spans import merged, records_in
from share_spark.kafka.span_reads import plan_reads
from share_spark.model.errors import ConfigError, TopicError
from share_spark.model.ids import LogEnds
from share_spark.spark.frames import keys_of_tasks, murmur3
from share_spark.topics.topic_registry import (
    AppendNote,
    TopicEntry,
    check_topic,
    new_topic_id,
    property_key,
)
from share_spark.topics.topic_table import cuts
from share_spark.topics.topic_view import TopicView

SPANS = st.lists(
    st.builds(
        lambda topic, partition, first, size: OffsetSpan(topic, partition, first, first + size),
        st.sampled_from(["a", "b"]),
        st.integers(0, 2),
        st.integers(0, 60),
        st.integers(-1, 20),
    ),
    max_size=12,
)


def places(spans: list[OffsetSpan]) -> set[tuple[str, int, int]]:
    return {(s.topic, s.partition, o) for s in spans for o in range(s.first_offset, s.last_offset + 1)}


@given(SPANS)
def test_merged_spans_hold_the_same_offsets_once(spans: list[OffsetSpan]) -> None:
    result = merged(spans)
    assert places(result) == places(spans)
    assert records_in(result) == len(places(spans))
    for one, other in pairwise(result):
        assert one[:2] != other[:2] or one.last_offset + 1 < other.first_offset


@given(SPANS, st.integers(1, 8))
def test_reads_hold_each_offset_once_and_in_order(spans: list[OffsetSpan], tasks: int) -> None:
    reads = plan_reads(spans, tasks)
    read = [span for one in reads for span in one.spans]
    assert sorted(read) == merged(spans)
    for one in reads:
        assert len({span[:2] for span in one.spans}) == len(one.spans) <= one.pieces
    for place in {span[:2] for span in read}:
        firsts = [span.first_offset for span in read if span[:2] == place]
        assert firsts == sorted(firsts)


def test_one_read_of_even_spans_is_not_cut() -> None:
    even = [OffsetSpan("t", partition, 0, 99_999) for partition in range(4)]
    assert [read.pieces for read in plan_reads(even, 2)] == [4]
    assert [read.pieces for read in plan_reads(even[:1], 2)] == [2]


def test_one_large_span_among_small_ones_is_cut() -> None:
    spans = [OffsetSpan("t", 0, 0, 999_999), *(OffsetSpan("t", p, 0, 9) for p in range(1, 4))]
    assert [read.pieces for read in plan_reads(spans, 2)] == [12]


def test_redeliveries_beside_many_new_records_are_small_pieces() -> None:
    spans = [OffsetSpan("t", 0, 0, 9), OffsetSpan("t", 0, 100_000, 199_999)]
    assert [read.pieces for read in plan_reads(spans, 2)] == [1, 8]


def test_offsets_as_spark_wants_them() -> None:
    (read,) = plan_reads([OffsetSpan("t", 1, 5, 9), OffsetSpan("u", 0, 0, 0)], 1)
    starting, ending = (json.loads(text) for text in read.offsets_json())
    assert starting == {"t": {"1": 5}, "u": {"0": 0}}
    assert ending == {"t": {"1": 10}, "u": {"0": 1}}
    assert json.loads(read.assign_json()) == {"t": [1], "u": [0]}


@given(SPANS.map(merged).filter(bool), st.integers(1, 9))
def test_cuts_give_every_task_its_share(spans: list[OffsetSpan], tasks: int) -> None:
    tasks = min(tasks, records_in(spans))
    ordered = sorted(places(spans))
    bounds = [0, *(ordered.index(cut) for cut in cuts(spans, tasks)), len(ordered)]
    sizes = [after - before for before, after in pairwise(bounds)]
    assert len(sizes) == tasks
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("tasks", [1, 2, 3, 16, 100])
def test_each_task_has_a_key_that_the_hash_sends_there(tasks: int) -> None:
    assert [murmur3(key) % tasks for key in keys_of_tasks(tasks)] == list(range(tasks))


def commit(**fields: object) -> CommitFile:
    values = {"properties": None, "note": None, "adds_data": False, "blind": True}
    return CommitFile(**(values | fields))  # type: ignore[arg-type]


def test_a_view_follows_the_commits() -> None:
    entry = TopicEntry(topic_id="one", partitions=2)
    view = TopicView(version=3)
    assert view.apply(commit(properties={property_key("t"): entry.to_json(), "other": "x"}))
    assert view.state("t").ends == {0: LogEnds(0, 0), 1: LogEnds(0, 0)}
    note = AppendNote("append", "one", "t", {1: 7})
    assert view.apply(commit(note=note.to_json(), adds_data=True))
    assert view.state("t").ends[1] == LogEnds(0, 7)
    trimmed = entry.trimmed({1: -1, 0: 5}, {0: 0, 1: 7})
    assert view.apply(commit(properties={property_key("t"): trimmed.to_json()}))
    assert view.state("t").ends == {0: LogEnds(0, 0), 1: LogEnds(7, 7)}
    assert view.apply(commit()), "optimize, vacuum and deletions change no end"
    assert view.version == 7
    assert not view.apply(commit(adds_data=True)), "rows of another program: ask the table"


def test_a_topic_created_again_starts_empty() -> None:
    old = TopicEntry(topic_id="old", partitions=1)
    view = TopicView(version=0, topics={"t": old}, written={"t": {0: 9}})
    new = TopicEntry(topic_id="new", partitions=1)
    view.apply(commit(properties={property_key("t"): new.to_json()}))
    assert view.state("t").ends == {0: LogEnds(0, 0)}
    late = AppendNote("append", "old", "t", {0: 12})
    view.apply(commit(note=late.to_json(), adds_data=True))
    assert view.state("t").ends == {0: LogEnds(0, 0)}, "an append to the old topic counts no more"


def test_a_commit_file() -> None:
    lines = [
        {"commitInfo": {"operation": "WRITE", "isBlindAppend": False, "userMetadata": "note"}},
        {"metaData": {"id": "x", "configuration": {"a": "1"}}},
        {"add": {"path": "p", "dataChange": True}},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert parse_commit(text) == CommitFile(
        properties={"a": "1"}, note="note", adds_data=True, blind=False, operation="WRITE"
    )
    moved = json.dumps({"add": {"path": "p", "dataChange": False}})
    assert parse_commit(moved) == CommitFile(properties=None, note=None, adds_data=False, blind=False)
    assert AppendNote.from_json("not a note of ours") is None


def test_topic_names_and_ids() -> None:
    for bad in ("", "a/b", "a b", "..", "x" * 250):
        with pytest.raises(TopicError, match="not a valid topic name"):
            check_topic(bad, 1)
    assert len(new_topic_id()) == 22
    assert new_topic_id() != new_topic_id()


@pytest.mark.parametrize(
    ("text", "sql_name"),
    [
        ("/data/state", "delta.`/data/state`"),
        ("s3a://bucket/state/", "delta.`s3a://bucket/state`"),
        ("delta.`/data/a b`", "delta.`/data/a b`"),
        ("queues", "`queues`"),
        ("main.queues", "`main`.`queues`"),
        ("main.`my queues`.t", "`main`.`my queues`.`t`"),
    ],
)
def test_locations(text: str, sql_name: str) -> None:
    assert Location.parse(text).sql_name() == sql_name


def test_a_relative_path_is_made_absolute() -> None:
    path = Location.parse("./state").path
    assert path is not None
    assert path.startswith("/")
    assert path.endswith("/state")


def test_tables_of_a_location() -> None:
    assert Location.parse("/data/").table("log").sql_name() == "delta.`/data/log`"
    assert Location.parse("main.queues").table("log").sql_name() == "`main`.`queues`.`log`"
    with pytest.raises(ConfigError, match="names a table"):
        Location.parse("main.queues.t").table("log")


@pytest.mark.parametrize("text", ["", "a..b", "a.b.c.d", "a b", "a:b"])
def test_what_is_no_location(text: str) -> None:
    with pytest.raises(ConfigError, match="is neither a path"):
        Location.parse(text)
