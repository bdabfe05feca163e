"""Which commit of a group is the newest that counts, judged from the notes of commits alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.delta.commit_files import parse_commit
from share_spark.state.commits import CommitNote, GroupTail, NotedCommit, group_tail
from share_spark.topics.topic_registry import AppendNote
from tests.twins.memory import InMemoryStateLog, StateCommit

Noted = tuple[str, str, int, int]
"""Kind (``claim`` or ``records``), run, writer epoch, batch."""


def tail(*commits: Noted | None, group_id: str = "g") -> GroupTail:
    """Of a log written in this order; None: a commit of another program."""
    notes = [noted and CommitNote("g", noted[0], noted[2], noted[1], 7, noted[3]) for noted in commits]
    commits = [NotedCommit(version, note) for version, note in enumerate(notes)]
    return group_tail(reversed(commits), group_id)


def claim(run: str, epoch: int) -> Noted:
    return "claim", run, epoch, -1


def records(run: str, epoch: int, batch: int) -> Noted:
    return "records", run, epoch, batch


def newest(*commits: Noted | None) -> tuple[str, int] | None:
    valid = tail(*commits).valid
    return valid and (valid.run_id, valid.batch_id)


def test_an_empty_log_has_no_tail() -> None:
    assert tail() == GroupTail(None, 0, -1, True)
    assert tail(claim("a", 1), group_id="other") == GroupTail(None, 0, -1, True)


def test_a_claim_alone_is_no_state() -> None:
    assert tail(claim("a", 1)) == GroupTail(None, 1, 7, True)


def test_the_newest_append_of_the_owner_counts() -> None:
    assert newest(claim("a", 1), records("a", 1, 0), None, records("a", 1, 1), None) == ("a", 1)


def test_an_append_after_a_higher_claim_is_a_zombies() -> None:
    log = [claim("a", 1), records("a", 1, 0), claim("b", 2)]
    assert newest(*log, records("a", 1, 1)) == ("a", 0)
    assert newest(*log, records("a", 1, 1), records("b", 2, 0)) == ("b", 0)
    assert newest(*log, records("b", 2, 0), records("a", 1, 1)) == ("b", 0)
    assert newest(*log, records("a", 1, 1), claim("c", 3)) == ("a", 0)


def test_the_first_of_two_claims_of_one_epoch_wins() -> None:
    log = [claim("a", 1), claim("b", 1)]
    assert newest(*log, records("a", 1, 0)) == ("a", 0)


def test_a_successor_that_died_before_its_first_append_leaves_the_state_of_its_predecessor() -> None:
    found = tail(claim("a", 1), records("a", 1, 0), claim("b", 2))
    assert (found.valid and found.valid.run_id, found.epoch) == ("a", 2)


def test_a_log_that_was_cleaned_up_too_far_does_not_suffice() -> None:
    commits = [NotedCommit(version, CommitNote("g", "records", 1, "a", 0, version)) for version in (9, 8)]
    assert group_tail(iter(commits[:1]), "g").is_complete is False
    assert group_tail(iter(commits), "g").valid == commits[0].note


def test_a_note_survives_its_text_and_others_are_none() -> None:
    note = CommitNote("g ü", "records", 3, "run", 2, 17)
    assert CommitNote.from_json(note.to_json()) == note
    assert [CommitNote.from_json(text) for text in (None, "", "by hand", '{"a": 1}')] == [None] * 4


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=25))
def test_walking_back_finds_what_walking_forward_judges(acts: Sequence[tuple[int, bool]]) -> None:
    """The twin judges each commit in order; an engine claims, appends, and stops once it sees a foreign claim."""
    log = InMemoryStateLog()
    owned: dict[int, int] = {}
    for batch, (engine, claims) in enumerate(acts):
        if claims and engine not in owned:
            owned[engine] = log.highest("g")[0] + 1
            log.commits.append(StateCommit("g", "claim", owned[engine], f"run{engine}", batch, -1))
        elif owned.get(engine):
            log.commits.append(StateCommit("g", "records", owned[engine], f"run{engine}", 0, batch))
            owned[engine] *= owned[engine] == log.highest("g")[0]
    counted = log.that_count("g", log.version)
    notes = [CommitNote(*commit[:6]) for commit in log.commits]
    found = group_tail((NotedCommit(at, note) for at, note in reversed(list(enumerate(notes)))), "g").valid
    assert (found and found.batch_id) == (counted[-1].batch_id if counted else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{not json}",
        "[1]",
        '{"a": ' * 100_000,
        '{"share_spark": 1}',
        '{"share_spark": "yes", "group_id": 1}',
        "\ud83d",
    ],
)
def test_what_others_write_into_their_commits_is_no_note(text: str) -> None:
    info = json.dumps({"commitInfo": {"timestamp": "yesterday", "userMetadata": text}})
    assert CommitNote.from_json(parse_commit(info).note) is None
    assert AppendNote.from_json(parse_commit(info).note) is None
    assert parse_commit(json.dumps({"commitInfo": {"userMetadata": {"a": 1}}})).note is None
