"""Delivery to handlers of lists, in threads, and with a ``close``: how much is in flight, and processes that end. No
JVM."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from share_spark.handlers.handler import Record
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.companions import CompanionPlace, Said

ACCEPT = Said(AcknowledgeType.ACCEPT)
Made = Callable[..., CompanionPlace]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Makes a place of a handler with its settings."""
    places: list[CompanionPlace] = []

    def make(handler: Any, **settings: Any) -> CompanionPlace:
        places.append(CompanionPlace(tmp_path, handler, settings=settings))
        return places[-1]

    yield make
    for place in places:
        place.delivery.close()


async def of_list(records: list[Record]) -> list[None]:
    if any(record.offset == 6 and record.delivery_count == 1 for record in records):
        os._exit(3)
    await asyncio.sleep(3600 if records[0].delivery_count == 1 else 0)
    return [None] * len(records)


def hangs(record: Record) -> None:
    time.sleep(3600 if record.offset < 2 and record.delivery_count == 1 else 0.01)


def test_twice_the_records_of_all_calls_may_be_in_flight(made: Made) -> None:
    place = made(of_list, batch=4)
    assert place.delivery.room(place.limits) == 2 * 20 * 4
    place.deliver((0, 2, 2))
    assert place.delivery.room(place.limits) == 2 * 20 * 4 - 3
    place.finish()
    assert place.said == dict.fromkeys(range(3), ACCEPT)


def test_threads_bound_the_calls(made: Made) -> None:
    place = made(hangs, threads=3)
    assert place.delivery.room(place.limits) == 6
    assert place.delivery.room(place.limits._replace(most_calls=2)) == 4


def test_a_list_in_which_the_process_dies_is_accused_and_comes_again(made: Made) -> None:
    place = made(of_list, batch=4, linger=60)
    place.deliver((0, 3, 1))
    place.until(lambda _: (calls := place.delivery.calls) is not None and calls.running == 1)
    place.deliver((4, 7, 1))
    place.finish()
    assert place.said == dict.fromkeys(range(4), Said(Loss.FINISHED)) | dict.fromkeys(
        range(4, 8), Said(Loss.AMONG_OTHERS, "worker lost")
    )
    place.deliver((4, 7, 2), in_turn=True)
    place.finish()
    assert {place.said[offset] for offset in range(4, 8)} == {ACCEPT}


def test_another_process_follows_one_whose_threads_are_stuck(made: Made) -> None:
    place = made(hangs, threads=2)
    place.limits = place.limits._replace(timeout_ms=500)
    place.deliver((0, 9, 1))
    first = place.pid
    place.until(lambda delivered: delivered.in_flight == 0)
    overrun = Said(AcknowledgeType.RELEASE, "time limit of 500 ms exceeded")
    assert [offset for offset, said in place.said.items() if said == overrun] == [0, 1]
    assert {place.said[offset] for offset in range(2, 10)} == {Said(Loss.NOT_ENTERED)}
    place.until(lambda _: not list(place.delivery._companions))
    place.deliver((0, 1, 2), (2, 9, 1))
    place.finish()
    assert place.pid != first
    assert place.said == dict.fromkeys(range(10), ACCEPT)
    assert not place.faults


def test_a_delivery_that_is_closed_waits_for_the_close_of_its_handler(made: Made, tmp_path: Path) -> None:
    noted = tmp_path / "noted"

    class Ask:
        async def __call__(self, record: Record) -> None: ...

        async def close(self) -> None:
            await asyncio.sleep(3)
            noted.touch()

    place = made(Ask)
    place.deliver((0, 9, 1))
    place.finish()
    place.delivery.close()
    assert noted.exists()
