"""Records whose values are decoded before the call, in a companion process. The values are the offsets, as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from tests.support.companion_process import companion, hand_over
from tests.unit.companion.test_lists import by_offset


class Even(pydantic.RootModel[Annotated[int, pydantic.Field(multiple_of=2)]]):
    """An even number."""


REJECTED = (3, "the value is no Even: Input should be a multiple of 2")


async def of_one(even: Even) -> Ack:
    return Ack.reject(f"{even.root}")


async def of_record(record: Record[Even]) -> Ack:
    assert record.offset == record.value.root
    return Ack.reject(f"{record.value.root}")


async def of_list(evens: list[Even]) -> list[Ack]:
    return [Ack.reject(f"{even.root}") for even in evens]


async def of_records(records: list[Record[Even]]) -> list[Ack]:
    return [Ack.reject(f"{record.value.root}") for record in records]


def in_thread(even: Even) -> Ack:
    return Ack.reject(f"{even.root}")


class Asks:
    async def open(self) -> None:
        self.is_open = True

    async def __call__(self, even: Even) -> Ack:
        assert self.is_open
        return Ack.reject(f"{even.root}")


@pytest.mark.parametrize(
    ("handler", "settings"),
    [
        (of_one, {}),
        (of_record, {}),
        (of_list, {"batch": 4, "linger": 0}),
        (of_records, {"batch": 4, "linger": 0}),
        (in_thread, {"threads": 2}),
        (Asks, {}),
    ],
)
def test_what_cannot_be_decoded_is_rejected_without_a_call(
    handler: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    with companion(tmp_path, handler, **settings) as process:
        process.send(hand_over(1, 0, 9))
        assert by_offset(process, 10) == {at: REJECTED if at % 2 else (3, str(at)) for at in range(10)}
        assert process.entries()[0].status.tolist() == [4] * 10


def fails(value: bytes) -> int:
    if value == b"1":
        raise OSError("away")
    if value == b"2":
        raise ValueError("no number")
    return int(value)


async def of_number(record: Record[int]) -> Ack:
    return Ack.reject(f"{record.value}")


async def of_numbers(records: list[Record[int]]) -> list[Ack]:
    return [Ack.reject(f"{record.value}") for record in records]


def number_in_thread(record: Record[int]) -> Ack:
    return Ack.reject(f"{record.value}")


@pytest.mark.parametrize(
    ("handler", "settings"),
    [(of_number, {}), (of_numbers, {"batch": 4, "linger": 0}), (number_in_thread, {"threads": 2})],
)
def test_an_error_that_is_not_the_records_fault_releases_it(handler: Any, settings: Any, tmp_path: Path) -> None:
    with companion(tmp_path, handler, value_from=lambda: fails, **settings) as process:
        process.send(hand_over(1, 0, 3))
        assert by_offset(process, 4) == {
            0: (3, "0"),
            1: (2, "OSError: away"),
            2: (3, "the value cannot be decoded: ValueError: no number"),
            3: (3, "3"),
        }


async def never(record: Record[int]) -> None:
    raise AssertionError


def test_a_decoder_that_ends_the_process_names_its_record(tmp_path: Path) -> None:
    def decode(value: bytes) -> int:
        os._exit(1)

    with companion(tmp_path, never, value_from=decode) as process:
        process.send(hand_over(1, 4, 4))
        assert process.wait() == 1
        assert process.statuses() == {4: CallStatus.IN_HANDLER}
