"""The log of a group with clients, which may have a hundred commits a second, keeps itself small. No JVM."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType
from deltalake import DeltaTable

from share_spark import ShareGroupAdmin
from share_spark.delta.commit_files import CommitFiles
from share_spark.maintenance import background
from tests.support.share_consumers import GROUP, Place, consumer, work_off

RECORDS = 40_000


def log_files(place: Place) -> tuple[int, int]:
    """How many commits, and data files, the state log has."""
    table = Path(place.state) / "share_state_log"
    commits = sum(1 for _ in (table / "_delta_log").glob("*.json"))
    return commits, sum(1 for path in table.rglob("*.parquet") if "_delta_log" not in path.parts)


@pytest.mark.slow
def test_old_commits_go_while_clients_commit_and_a_restart_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_CLEAN_INTERVAL_S", 1.0)
    place = Place.below(tmp_path)
    place.produce(1, RECORDS)
    settings = {
        "state__refresh": 1_000,
        "log__retention": 1_000,
        "share__coordinator__snapshot__update__records__per__snapshot": 100,
    }
    few = {"max.poll.records": "100"}
    with place.gateway(**settings) as address:
        with consumer(address, security=few) as found:
            work_off(found, RECORDS, lambda _: AcknowledgeType.ACCEPT)
        version = CommitFiles.at(None, f"{place.state}/share_state_log").latest_version()
        assert version > 400
        until = time.monotonic() + 30
        while log_files(place) >= (version // 2, version // 2):
            assert time.monotonic() < until, log_files(place)
            time.sleep(0.2)
    place.produce(RECORDS + 1, 2 * RECORDS)
    with place.gateway(**settings) as address, consumer(address) as found:
        said = work_off(found, RECORDS, lambda _: AcknowledgeType.ACCEPT)
    assert {value for value, _ in said} == set(range(RECORDS + 1, 2 * RECORDS + 1))
    offsets = ShareGroupAdmin(place.state).describe_offsets(GROUP)
    assert [(one.start_offset, one.lag) for one in offsets] == [(RECORDS // 2, 0)] * 4
    rows = DeltaTable(f"{place.state}/share_state_log").to_pyarrow_table()  # another reader finds all that it names
    assert rows.num_rows > 0
