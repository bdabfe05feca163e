"""Broken storage: the engine refuses in one line or goes on from the right state; never silently from a wrong one."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.model.errors import StateError
from share_spark.state.tables import log_table
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import GROUP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> DeltaWorld:
    """Two micro-batches are committed: what the first acquired is accepted, five more are held."""
    world = DeltaWorld(spark, str(tmp_path / "state"))
    world.produce(5)
    engine = world.engine()
    engine.run()
    world.produce(5)
    engine.run()
    return world


def log_directory(world: DeltaWorld) -> Path:
    return Path(str(log_table(world.location)))


def newest(directory: Path, pattern: str) -> Path:
    return max(directory.rglob(pattern), key=lambda file: file.stat().st_mtime_ns)


def cut_commit(world: DeltaWorld) -> None:
    file = newest(log_directory(world) / "_delta_log", "*.json")
    file.write_bytes(file.read_bytes()[:-40])
    forget_checksum(file)


def lose_data_file(world: DeltaWorld) -> None:
    newest(log_directory(world), "*.parquet").unlink()


def cut_data_file(world: DeltaWorld) -> None:
    file = newest(log_directory(world), "*.parquet")
    file.write_bytes(file.read_bytes()[:200])
    forget_checksum(file)


def forget_checksum(file: Path) -> None:
    """Hadoop's, which would notice by itself: storage that has none is the harder case."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def restore_table(world: DeltaWorld) -> None:
    """Back to where only the first micro-batch was there; the commits of the second stay in the log."""
    world.spark.sql(f"RESTORE TABLE {log_table(world.location).sql_name()} TO VERSION AS OF 2")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_commit, r"share_state_log cannot be used: "),
        (lose_data_file, r"share_state_log cannot be used: "),
        (cut_data_file, r"share_state_log cannot be used: "),
        (restore_table, r"micro-batch 1 of group 'billing' \(writer epoch 1\) was committed, but its rows are gone"),
    ],
)
def test_a_damaged_log_is_refused_in_one_line(
    world: DeltaWorld, damage: Callable[[DeltaWorld], None], message: str
) -> None:
    damage(world)
    with pytest.raises(StateError, match=message) as caught:
        world.engine()
    assert "\n" not in str(caught.value)


def test_a_log_that_was_put_back_is_refused_by_who_has_seen_more(world: DeltaWorld, tmp_path: Path) -> None:
    """The directory is from a backup, so nothing in it is wrong; the checkpoint knows a later claim."""
    shutil.copytree(log_directory(world), tmp_path / "backup")
    world.engine()
    shutil.rmtree(log_directory(world))
    shutil.copytree(tmp_path / "backup", log_directory(world))
    late = world.delta_store(world, "late")
    late.log.least_epoch = 2
    before = sorted(log_directory(world).rglob("*"))
    with pytest.raises(StateError, match=r"is older than the checkpoint of group 'billing': it knows writer epoch 1"):
        late.claim()
    assert sorted(log_directory(world).rglob("*")) == before


@contextmanager
def full_disk(spark: SparkSession) -> Iterator[None]:
    """Neither the JVM nor this process can write a byte to any file."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in (jvm, os.getpid())}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """No user, root included, can create a file there."""
    if subprocess.run(["chattr", "+i", str(directory)], capture_output=True, check=False).returncode:
        if os.geteuid() == 0:
            pytest.skip("root, on a file system without immutable directories")
        directory.chmod(0o555)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(directory)], capture_output=True, check=False)
        directory.chmod(0o755)


def test_a_full_disk_stops_the_engine_and_loses_nothing(spark: SparkSession, world: DeltaWorld) -> None:
    world.clock.advance(30_000)
    engine = world.engine()
    with full_disk(spark), pytest.raises(StateError, match="share_state_log cannot be used: ") as caught:
        engine.run()
    assert "\n" not in str(caught.value)
    assert GROUP == "billing"
    assert world.windows() == ["5-10: 5-9 Q1"]
    world.engine(available_now=True).run_until_done(step_ms=30_000)
    assert world.windows() == ["10-10"]


def test_a_directory_that_cannot_be_written_stops_the_engine(world: DeltaWorld) -> None:
    engine = world.engine()
    world.produce(1)
    with unwritable(log_directory(world) / "_delta_log"):
        with pytest.raises(StateError, match="refused micro-batch 0 3 times: "):
            engine.run()
        with pytest.raises(StateError, match="share_state_log cannot be used: "):
            world.engine()
    assert world.windows() == ["5-10: 5-9 Q1"]
