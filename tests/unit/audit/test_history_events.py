"""What happened to a record, from rows; and which appends came too late to count."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.audit.record_events import AttemptEnd, Life, RecordRow, RecordState, Written, events_of
from share_spark.state.stale_appends import EpochNotes, EpochRows, late_appends
from tests.twins.memory import InMemoryStateLog, StateCommit

AVAILABLE, ACKNOWLEDGED = (RecordState(name, 1) for name in ("available", "acknowledged"))
FINISHED = RecordState("finished")
GONE = RecordState("gone")
LOST = "[the log has lost this record; what follows is another one at the same offset]"


def held(count: int = 1, member: str = "m") -> RecordState:
    return RecordState("acquired", count, member, 30_000)


def event_texts(*rows: RecordState | tuple[str, int, RecordState | None] | None, new_from: int = 99) -> list[str]:
    """``event count (member) [note]`` of rows that are a state, or (outcome, count, state). ``new_from``: the row with
    which the state was initialized again."""

    def life(batch: int) -> Life:
        return Life("t", int(batch >= new_from), batch)

    events = events_of(
        RecordRow(Written(1, batch, "run", 0), [AttemptEnd(row[1], row[0])], row[2], life(batch))
        if type(row) is tuple
        else RecordRow(Written(1, batch, "run", 0), [], row, life(batch))  # type: ignore[arg-type]
        for batch, row in enumerate(rows)
    )
    return [
        f"{found.event} {found.delivery_count}"
        + (f" ({found.member_id})" if found.member_id else "")
        + (f" [{found.note}]" if found.note else "")
        for found in events
    ]


def test_the_end_of_an_attempt_comes_before_the_next_acquisition() -> None:
    assert event_texts(held(), ("released", 1, held(2)), ("accepted", 2, FINISHED), FINISHED) == [
        "acquired 1 (m)",
        "released 1 (m)",
        "acquired 2 (m)",
        "accepted 2 (m)",
    ]


def test_a_snapshot_that_repeats_is_no_news() -> None:
    assert event_texts(held(), held(), ("released", 1, AVAILABLE), AVAILABLE, AVAILABLE, held(2), held(2)) == [
        "acquired 1 (m)",
        "released 1 (m)",
        "acquired 2 (m)",
    ]


def test_an_attempt_that_a_clean_stop_gave_back_is_not_counted() -> None:
    assert event_texts(held(2), ("released", 1, AVAILABLE), held(2, "n")) == [
        "acquired 2 (m)",
        "released 1 (m) [attempt not counted]",
        "acquired 2 (n)",
    ]


def test_without_reasons_the_states_are_reported() -> None:
    assert event_texts(held(), held(2), AVAILABLE, held(3), FINISHED, FINISHED) == [
        "acquired 1 (m)",
        "available 1 (m) [reason not kept]",
        "acquired 2 (m)",
        "available 1 (m) [reason not kept]",
        "acquired 3 (m)",
        "finished 3 (m) [reason not kept]",
    ]
    assert event_texts(held(), ACKNOWLEDGED, ACKNOWLEDGED, FINISHED)[1:] == ["acknowledged 1 (m) [reason not kept]"]
    assert event_texts(held(), ("released", 1, AVAILABLE), FINISHED)[2:] == ["finished 1 [reason not kept]"]


def test_what_the_log_begins_with_is_earlier_than_it() -> None:
    assert event_texts(ACKNOWLEDGED, FINISHED) == ["acknowledged 1 [earlier than the log]"]
    assert event_texts(FINISHED, FINISHED) == []
    assert event_texts(("rejected", 1, None)) == ["rejected 1"]


def test_a_record_that_the_log_has_lost_is_reported_once_and_what_comes_after_is_another() -> None:
    assert event_texts(held(), ("accepted", 1, FINISHED), GONE, GONE, held(), ("released", 1, held(2)), FINISHED) == [
        *("acquired 1 (m)", "accepted 1 (m)", f"truncated None {LOST}"),
        *("acquired 1 (m)", "released 1 (m)", "acquired 2 (m)", "finished 2 (m) [reason not kept]"),
    ]
    assert event_texts(held(2), ("truncated", 2, GONE), held()) == [
        *("acquired 2 (m)", f"truncated 2 (m) {LOST}", "acquired 1 (m)"),
    ]
    assert event_texts(held(2), ("accepted", 2, GONE), held())[1:] == [
        *("accepted 2 (m)", f"truncated None {LOST}", "acquired 1 (m)"),
    ]


def test_without_reasons_a_truncation_is_reported_as_well() -> None:
    assert event_texts(held(2), GONE, held(), FINISHED, GONE) == [
        *("acquired 2 (m)", f"truncated 2 (m) {LOST}"),
        *("acquired 1 (m)", "finished 1 (m) [reason not kept]", f"truncated None {LOST}"),
    ]


def test_a_record_that_was_not_reached_is_not_lost_nor_one_of_an_earlier_state() -> None:
    assert event_texts(GONE, GONE, held()) == ["acquired 1 (m)"]
    assert event_texts(held(), ("released", 1, AVAILABLE), GONE, held(), new_from=2) == [
        *("acquired 1 (m)", "released 1 (m)", "acquired 1 (m)"),
    ]


CLEANED = EpochNotes()


def epoch(first_segment: int = 0, began_at: int = 0, last_at: int | None = None, last_segment: int = 0) -> EpochRows:
    return EpochRows(first_segment, began_at, None if last_at is None else 5, last_segment, last_at)


def test_where_both_commits_are_gone_the_rows_are_asked() -> None:
    successor = epoch(first_segment=1, began_at=100)
    gone = {1: CLEANED, 2: CLEANED}
    assert late_appends({1: epoch(last_at=99), 2: successor}, gone) == []
    assert late_appends({1: epoch(last_at=101), 2: successor}, gone) == [(1, 5)]
    assert late_appends({1: epoch(last_at=99, last_segment=1), 2: successor}, gone) == [(1, 5)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=25), st.integers(0, 25))
def test_the_notes_that_are_left_judge_as_all_of_them_do(acts: list[tuple[int, bool]], cleaned: int) -> None:
    """The twin judges each commit in order; an engine claims, appends, and stops once it sees a foreign claim. What is
    gone altogether is left to the rows, which have no say here: they look innocent."""
    log = InMemoryStateLog()
    owned: dict[int, int] = {}
    for batch, (engine, claims) in enumerate(acts):
        if claims and engine not in owned:
            owned[engine] = log.highest("g")[0] + 1
            log.commits.append(StateCommit("g", "claim", owned[engine], f"run{engine}", batch, -1))
        elif owned.get(engine):
            log.commits.append(StateCommit("g", "records", owned[engine], f"run{engine}", 0, batch))
            owned[engine] *= owned[engine] == log.highest("g")[0]
    counted = {commit.batch_id for commit in log.that_count("g", log.version)}
    rows: dict[int, EpochRows] = {}
    notes: dict[int, EpochNotes] = {}
    expected = set()
    for version, commit in enumerate(log.commits):
        number = commit.writer_epoch
        is_claim = commit.kind == "claim"
        rows[number] = EpochRows(1, 1, None, None, None) if is_claim else EpochRows(1, 1, commit.batch_id, 0, 0)
        if version >= cleaned:
            known = notes.get(number, CLEANED)
            notes[number] = known._replace(**{"claim" if is_claim else "last_append": version})
            if not is_claim and commit.batch_id not in counted:
                expected.add((number, commit.batch_id))
    assert set(late_appends(rows, notes)) == expected
