"""Which appends count, in a log that many groups share and whose old commits may be gone; when they were decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.table_maintenance import KeptTable
from share_spark.maintenance.retention import drop_segments
from share_spark.model.errors import FencedError
from share_spark.state.commits import CommitListing, CommitNote, NotedCommit
from share_spark.state.segments import tail_of
from share_spark.state.tables import log_table
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import GROUP, RELEASE, EngineLife

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"
MANY = 400
"""More than a start looks at before it asks the rows."""


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> DeltaWorld:
    """Three records to deliver."""
    found = DeltaWorld(spark, str(tmp_path / "state"))
    found.produce(3)
    return found


def delta_log(world: DeltaWorld) -> Path:
    return Path(f"{log_table(world.location)}/_delta_log")


def newest_version(world: DeltaWorld) -> int:
    return max(int(path.stem) for path in delta_log(world).glob("*.json"))


def others_commit(world: DeltaWorld, commits: int = MANY) -> None:
    """Appends of another group, without rows: Delta's own files, of which it needs no more than this one action."""
    first = newest_version(world) + 1
    for version in range(first, first + commits):
        note = CommitNote("another", "records", 7, "other-run", 0, version).to_json()
        info: dict[str, Any] = {"timestamp": 0, "operation": "WRITE", "operationParameters": {}, "isBlindAppend": True}
        action = json.dumps({"commitInfo": info | {"userMetadata": note}})
        (delta_log(world) / f"{version:020d}.json").write_text(action + "\n")


def commits_are_cleaned_up(world: DeltaWorld) -> None:
    """All that are older than the newest, as Delta does it: behind a checkpoint."""
    jvm: Any = world.spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(world.spark._jsparkSession, str(log_table(world.location)))
    none = getattr(jvm, "scala.None$").__getattr__("MODULE$")
    log.checkpoint(log.update(False, none, none), none)
    for path in sorted(delta_log(world).glob("*.json"))[:-1]:
        path.unlink()


def is_fenced(engine: EngineLife) -> None:
    with pytest.raises(FencedError):
        engine.run()


def offsets(engine: EngineLife) -> list[int]:
    return [summary.start_offset for summary in engine.engine._summaries.values()]


def test_a_late_append_does_not_count_however_much_others_have_committed_since(world: DeltaWorld) -> None:
    """The claim that it came after is all that its claimer ever wrote, so only the order of commits decides."""
    zombie = world.engine()
    zombie.run()
    decided_at = world.clock()
    world.engine()
    world.clock.advance(1_000)
    is_fenced(zombie)
    others_commit(world)
    world.machine_is_lost()
    third = world.engine()
    assert (offsets(third), third.claim.writer_epoch, third.store.last_time_ms) == ([0], 3, decided_at)
    third.run()
    assert world.windows_by_spark() == ["0-3: 0-2 Q1"]


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose commits are read."""
    versions: list[int] = []
    read = CommitListing._read

    def noted(commits: CommitListing, version: int) -> NotedCommit | None:
        versions.append(version)
        return read(commits, version)

    monkeypatch.setattr(CommitListing, "_read", noted)
    return versions


def test_where_the_rows_suffice_few_commits_are_read(world: DeltaWorld, walked: list[int]) -> None:
    """The last claimer has written its snapshots: that is decided, whatever was before."""
    zombie = world.engine()
    zombie.run()
    successor = world.engine()
    is_fenced(zombie)
    world.clock.advance(30_000)
    successor.run()
    others_commit(world)
    walked.clear()
    third = world.engine()
    assert (third.claim.writer_epoch, third.store.last_counted, third.store.last_time_ms) == (
        3,
        (2, 0),
        world.clock(),
    )
    assert min(walked) >= newest_version(world) - MANY


def test_a_group_that_is_new_in_a_long_log_walks_not_at_all_far(world: DeltaWorld, walked: list[int]) -> None:
    world.engine().run()
    others_commit(world)
    world.clock.advance(5)
    other = world.delta_store(world, "new")
    other.log.group_id = "new"
    walked.clear()
    assert (other.claim().writer_epoch, dict(other.load()), other.last_time_ms) == (1, {}, 0)
    assert min(walked) >= newest_version(world) - MANY


def test_two_claims_of_one_epoch_and_nothing_after(world: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is refused; the rows then name the epoch twice, and the first one's appends count."""
    early, late = (world.delta_store(world, name) for name in ("early", "late"))
    claim = early.claim()
    with monkeypatch.context() as patch:
        patch.setattr("share_spark.state.commits.CommitListing.latest_version", lambda _self: 0)
        with pytest.raises(FencedError):
            late.claim()
    others_commit(world)
    world.make_store = lambda _world, _run_id: early
    engine = EngineLife(world, "early", available_now=False)
    early.load()
    monkeypatch.setattr(type(early), "claim", lambda _self: claim)
    engine.engine.start()
    engine.run()
    others_commit(world)
    tail = tail_of(world.spark, world.location, GROUP, early.log.opened(), newest_version(world))
    assert (tail.epoch, tail.last) == (1, (1, 0))
    assert {row.run_id for row in tail.rows(world.spark).where("kind <> 'claim'").collect()} == {"early"}


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_time_of_the_last_micro_batch_that_counts(world: DeltaWorld, cleaned: bool) -> None:
    """From its note, or from its rows; not from a claim's."""
    engine = world.engine()
    assert engine.store.last_time_ms == 0
    world.clock.advance(777)
    engine.run()
    decided_at = world.clock()
    assert engine.store.last_time_ms == 0, "as of the load"
    world.clock.advance(50)
    second = world.engine()
    assert second.store.last_time_ms == decided_at
    if cleaned:
        others_commit(world, 1)
        commits_are_cleaned_up(world)
    third = world.engine()
    assert (third.claim.writer_epoch, third.store.last_time_ms) == (3, decided_at)
    assert world.windows_by_spark() == ["0-3: 0-2 Q1"]


def test_a_claim_lies_above_all_that_its_predecessor_may_prune(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two segments end between the successor's look and its claim; what is below the last one may go at any time."""
    busy = DeltaWorld(world.spark, str(world.location), handler=lambda *_: RELEASE, **{UPDATES: 1})
    busy.produce(1)
    old = busy.engine()
    old.run()
    write, left = DirectAppends.begin, [lambda: (old.run(), old.run())]

    def overtaken(self: DirectAppends, *given: Any) -> Any:
        while left:
            left.pop()()
        return write(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(DirectAppends, "begin", overtaken)
        new = busy.delta_store(busy, "new")
        assert new.claim().writer_epoch == 2
    assert new.segment > old.store.segment
    assert drop_segments(KeptTable(busy.spark, log_table(busy.location)), GROUP, old.store.segment)
    claims = log_table(busy.location).load(busy.spark).where("kind = 'claim'").groupBy().agg(F.max("writer_epoch"))
    assert claims.first()[0] == 2
    is_fenced(old)
    assert new.load().keys() == old.engine._summaries.keys()
    assert new.last_counted == (1, 2), "both that came before the claim, not the one after it"


def test_an_engine_that_was_quiet_for_longer_than_the_log_keeps_commits(world: DeltaWorld) -> None:
    quiet = world.engine()
    quiet.run()
    others_commit(world, 3)
    commits_are_cleaned_up(world)
    world.produce(2)
    quiet.run()
    quiet.run()
    assert world.windows_by_spark() == ["5-5"], "all of it is there"
    assert offsets(world.engine()) == [5]


def test_a_claim_in_commits_that_are_gone_ends_a_quiet_engine(world: DeltaWorld) -> None:
    quiet = world.engine()
    quiet.run()
    world.engine()
    others_commit(world, 3)
    commits_are_cleaned_up(world)
    before = newest_version(world)
    world.clock.advance(1_000)
    is_fenced(quiet)
    assert newest_version(world) == before, "nothing is written, below the checkpoint or above"
