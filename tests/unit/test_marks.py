"""Marks of handlers that had a record when everything died."""

from __future__ import annotations

import os
import time
from pathlib import Path

from share_spark.process.marks import Marks


def test_a_mark_is_told_by_the_member_that_left_it(tmp_path: Path) -> None:
    marks = Marks.beside(f"file:{tmp_path}", "billing/eu", "spark-a")
    assert marks is not None
    assert marks.left() == frozenset()
    Path(marks.own).touch()
    successor = Marks.beside(str(tmp_path), "billing/eu", "spark-b")
    stranger = Marks.beside(str(tmp_path), "billing", "spark-b")
    assert successor is not None
    assert stranger is not None
    assert successor.left() == {"spark-a"}
    assert stranger.left() == frozenset()


def test_a_mark_of_long_ago_is_forgotten(tmp_path: Path) -> None:
    marks = Marks.beside(str(tmp_path), "billing", "spark-a")
    assert marks is not None
    Path(marks.own).touch()
    os.utime(marks.own, (time.time() - 90_000,) * 2)
    assert marks.left() == frozenset()
    assert not Path(marks.own).exists()


def test_object_stores_take_no_marks() -> None:
    assert Marks.beside("s3a://bucket/state/share_state_log", "billing", "spark-a") is None
