"""An engine that claims a sink while the one before it is alive, or that dies in the middle of its claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.delta.location import Location
from share_spark.model.errors import FencedError, StateError
from share_spark.model.ids import BatchStamp
from tests.support.sink_place import SinkPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Death(BaseException):
    """The engine ends here."""


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> SinkPlace:
    return SinkPlace(spark=spark, state=tmp_path / "state", table=Location(path=str(tmp_path / "sink")))


@pytest.mark.parametrize("at", ["put", "stamps", "read"])
def test_a_delivery_that_is_written_while_another_claims_comes_back_or_is_refused(place: SinkPlace, at: str) -> None:
    predecessor, old, _ = place.claimed()
    refused: list[FencedError] = []

    def meanwhile() -> None:
        try:
            predecessor.commit(BatchStamp(old, 0), place.rows(1), b"meanwhile")
        except FencedError as fault:
            refused.append(fault)

    left = place.claims_disturbed(at, meanwhile, old + 1, BatchStamp(old, 0))
    assert (place.written(), left) == (([], None) if refused else ([1], b"meanwhile"))
    assert bool(refused) == (at != "put")


def test_a_delivery_that_is_written_to_the_sink_before_while_another_one_is_claimed(
    place: SinkPlace, tmp_path: Path
) -> None:
    """That it is to be claimed as well is known from the journal alone, which has to be read again."""
    predecessor, old, _ = place.claimed()
    other = Location(path=str(tmp_path / "other"))

    def meanwhile() -> None:
        predecessor.commit(BatchStamp(old, 0), place.rows(1), b"meanwhile")

    assert place.claims_disturbed("stamps", meanwhile, old + 1, BatchStamp(old, 0), other) == b"meanwhile"
    assert place.written() == [1]
    with pytest.raises(FencedError):
        predecessor.commit(BatchStamp(old, 1), place.rows(2), b"")


@pytest.mark.parametrize("at", ["put", "stamps", "read"])
def test_a_delivery_that_is_forgotten_while_another_claims_was_absorbed(place: SinkPlace, at: str) -> None:
    predecessor, old, _ = place.claimed()
    predecessor.commit(BatchStamp(old, 0), place.rows(1), b"absorbed by micro-batch 1")
    left = place.claims_disturbed(at, predecessor.forget, old + 1, BatchStamp(old, 1))
    assert left is None
    assert place.claimed(counted=BatchStamp(old, 1))[2] is None


@pytest.mark.parametrize("at", ["put", "stamps", "read", "remove"])
def test_a_successor_that_dies_inside_its_claim_leaves_everything_to_the_next(
    place: SinkPlace, tmp_path: Path, at: str
) -> None:
    predecessor, old, _ = place.claimed()
    predecessor.commit(BatchStamp(old, 0), place.rows(1), b"not absorbed")
    place.epochs += 1
    other = Location(path=str(tmp_path / "other"))

    def dies() -> None:
        raise Death

    with pytest.raises(Death):
        place.claims_disturbed(at, dies, place.epochs, BatchStamp(old, 0), other)
    assert place.claimed(counted=BatchStamp(old, 0))[2] == b"not absorbed"
    with pytest.raises(FencedError):
        predecessor.commit(BatchStamp(old, 1), place.rows(2), b"")


def test_a_slow_successor_whose_own_successor_has_absorbed_everything_is_fenced(place: SinkPlace) -> None:
    predecessor, old, _ = place.claimed()
    predecessor.commit(BatchStamp(old, 0), place.rows(1), b"absorbed by the third")

    def third() -> None:
        place.epochs = old + 1
        sink, _, left = place.claimed()
        assert left == b"absorbed by the third"
        sink.forget()

    with pytest.raises(FencedError):
        place.claims_disturbed("stamps", third, old + 1, BatchStamp(old, 0))


def test_rows_that_neither_the_state_nor_the_journal_knows_are_reported(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 3), place.rows(1), b"lost")
    sink.writer.journal.remove(BatchStamp(epoch, 3))
    with pytest.raises(StateError, match=r"holds rows of micro-batch 3 of writer epoch 1, whose acknowledgements are"):
        place.claimed(counted=BatchStamp(epoch, 3))
    assert place.claimed(counted=BatchStamp(epoch, 4))[2] is None
